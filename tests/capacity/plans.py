"""Small plans for tests: a page of few requests, as a file's text or as a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blink.model.scenario.loader import load_page
from blink.plan.capacity.answer import answer
from blink.plan.capacity.page import Plan

TEXT = """
schema = 1
title = "A small plan"
question = "How many?"
baseline = "vllm"

[candidates]
systems = ["blink", "vllm"]
models = ["llama3-8b"]
gpus = ["H100"]

[workload]
kind = "poisson"
rate = 1.0
requests = 1
lengths = { kind = "constant", input_tokens = 1024, output_tokens = 128 }

[slo]
ttft_ms = 400
tpot_ms = 20

[search]
requests = 150
seeds = 2
tolerance = 0.1
"""


def plan_of(tmp_path: Path, *settings: str, text: str = TEXT) -> Plan:
    """The page with ``settings`` as --set has them."""
    path = tmp_path / "plan.toml"
    path.write_text(text)
    return load_page(path, settings, Plan)


def answer_of(tmp_path: Path, *settings: str, text: str = TEXT) -> dict[str, Any]:
    """Its answer, on one core."""
    return answer(plan_of(tmp_path, *settings, text=text), workers=1)
