"""Both launch designs on the same graphs of a model: what each costs, for each kind of graph.

    python benchmarks/launch_designs.py                 Llama-3-8B's shape, random weights, one GPU
    python benchmarks/launch_designs.py --model llama3.2-1b --json

The zero line is the same graph on the same batch, replayed back to back by the host while the
scheduler stands still. A: the scheduler stays resident, launches fire-and-forget and polls. B: it
tail-launches the graph and itself, and is not there meanwhile.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from blink.hw.cuda.bench import replay_ns
from blink.hw.cuda.memory import GpuMemory
from blink.hw.cuda.scheduler import FIRE_AND_FORGET, TAIL_CHAIN, GpuConfig, GpuScheduler
from blink.hw.engine.llama import open_engine
from blink.hw.engine.port import GraphShape
from blink.model.policy import GraphCache, Limits
from blink.model.scheduler import DECODE_GRAPH, PREFILL_GRAPH
from blink.ring_protocol.constants import HEADER_BYTES, NO_TOKEN, SLOT_METADATA_BYTES, TOKEN_BYTES
from blink.ring_protocol.descriptor import IGNORE_EOS, Descriptor
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.slot import pack, unpack
from blink.ring_protocol.states import Outcome, State

DESIGNS = {"A fire and forget": FIRE_AND_FORGET, "B tail chain": TAIL_CHAIN}
OUTPUT_TOKENS = 300
NEAR = 40  # steps on either side of the one that is replayed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--context", type=int, default=512, help="prompt tokens of the decode rows")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = []
    for name, design in DESIGNS.items():
        rows += measure(asked.model, asked.context, name, design)
    if asked.json:
        print(json.dumps(rows))
        return 0
    print(f"{'graph':20} {'design':18} {'replay us':>10} {'step us':>10} {'over':>8} {'p99':>10}")
    for row in rows:
        print(
            f"{row['graph']:20} {row['design']:18} {row['replay_us']:10.1f} {row['p50_us']:10.1f} "
            f"{row['p50_us'] / row['replay_us'] - 1:8.2%} {row['p99_us']:10.1f}"
        )
    return 0


def measure(model: str, context: int, name: str, design: int) -> list[dict[str, Any]]:
    """One design: decode at batch 1 and 16, and prefill of some lengths, period of a step."""
    ring = Geometry(slots=32, prompt_tokens_max=2048, output_tokens_max=512)
    limits = Limits(16, 1, 2048)
    graphs = GraphCache(16, 2048, (1, 16), (128, context, 2048))
    modes = {DECODE_GRAPH: design, PREFILL_GRAPH: design}
    config = GpuConfig(ring, limits, 3_000, 16, graphs, modes=modes, log_capacity=1 << 14)
    rows = []
    with GpuScheduler(config, open_engine(model)) as scheduler:
        for batch in (1, 16):
            decode = GraphShape(False, batch, 1)
            steps, at, replay = serve(scheduler, [context] * batch, OUTPUT_TOKENS, decode)
            sides = steps[at - NEAR : at], steps[at : at + NEAR]
            periods = [np.diff([step.decided_ns for step in side]) for side in sides]
            rows.append(row(f"decode, batch {batch}", name, replay, np.concatenate(periods)))
        for tokens in (128, context, 2048):
            prefill = GraphShape(True, 1, tokens)
            steps, _, replay = serve(scheduler, [tokens] * 24, 1, prefill)
            own = np.array([step.seen_ns - step.decided_ns for step in steps])
            rows.append(row(f"prefill, {tokens}", name, replay, own[2:]))
    return rows


def row(graph: str, design: str, replay: float, ns: Any) -> dict[str, Any]:
    p50, p99 = (float(np.percentile(ns, part)) / 1e3 for part in (50, 99))
    return {
        "graph": graph,
        "design": design,
        "replay_us": replay / 1e3,
        "p50_us": p50,
        "p99_us": p99,
    }


def serve(
    scheduler: GpuScheduler, prompts: list[int], output_tokens: int, shape: GraphShape
) -> tuple[list[Any], int, float]:
    """Serve these prompts; in the middle, replay the graph that ran last on the batch it had.

    Returns the steps of that kind of graph, which of them was the last before the replays, and the
    replays' period, ns.
    """
    first = scheduler.report().steps
    generations = submit(scheduler, prompts, output_tokens)
    scheduler.start()
    halfway = first + len(prompts) // 2 + output_tokens // 2
    wait_until(scheduler, lambda: scheduler.check().steps >= halfway)
    scheduler.stop()
    at = scheduler.report().steps
    replay = replay_ns(scheduler.graphs.raw[shape], 30)
    ring = scheduler.config.geometry
    memory = GpuMemory(scheduler.ring.pointer, ring)
    size = len(prompts) * SLOT_METADATA_BYTES
    scheduler.start()
    wait_until(
        scheduler,
        lambda: (
            set(memory.read(HEADER_BYTES, size)[::SLOT_METADATA_BYTES]) == {State.DECODE_COMPLETED}
        ),
    )
    scheduler.stop()
    for slot, generation in enumerate(generations):
        empty = pack(State.EMPTY, Outcome.NONE, generation, 0)
        memory.store_release(ring.metadata_offset(slot), empty)
    graph = PREFILL_GRAPH if shape.prefill else DECODE_GRAPH
    ran = [(number, step) for number, step in enumerate(scheduler.steps()) if number >= first]
    kind = [(number, step) for number, step in ran if step.graph == graph]
    before = sum(number < at for number, _ in kind)
    # The step that was under way when the scheduler stopped waited for the replays.
    steps = [step for number, step in kind if number != at]
    return steps, before, replay


def submit(scheduler: GpuScheduler, prompts: list[int], output_tokens: int) -> list[int]:
    """As a front end would; returns the generations."""
    ring = scheduler.config.geometry
    memory = GpuMemory(scheduler.ring.pointer, ring)
    generations = []
    for slot, tokens in enumerate(prompts):
        generation = unpack(memory.load_acquire(ring.metadata_offset(slot))).generation + 1
        prompt = b"".join((7 + at % 97).to_bytes(TOKEN_BYTES, "little") for at in range(tokens))
        memory.write(ring.prompt_offset(slot), prompt)
        sizes = (tokens, output_tokens)
        wanted = Descriptor(slot, slot, *sizes, 0.0, 1.0, 0, NO_TOKEN, IGNORE_EOS, generation)
        memory.write(ring.descriptor_offset(slot), wanted.pack())
        pending = pack(State.PREFILL_PENDING, Outcome.NONE, generation, 0)
        memory.store_release(ring.metadata_offset(slot), pending)
        generations.append(generation)
    return generations


def wait_until(scheduler: GpuScheduler, reached: Callable[[], bool]) -> None:
    while not reached():
        scheduler.check()


if __name__ == "__main__":
    sys.exit(main())
