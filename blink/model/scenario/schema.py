"""A scenario: one page of strict TOML that says what to run and what to expect.

`Scenario` is the whole page. Its sections say what their keys mean; an unknown key is an error,
every default is visible in the resolved scenario, and no environment variable changes a result.
Names (model, GPU, host ...) are resolved by the catalogues of `blink.model`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from blink.model.scenario.base import (
    Count,
    Fraction,
    Nanoseconds,
    Positive,
    Section,
    conflict,
    sequence,
)
from blink.model.scenario.expect import Condition, Expect, System
from blink.model.scenario.faults import Fault
from blink.model.scenario.traffic import Tokens, Workload

Name = Annotated[str, Field(min_length=1)]
Batch = Annotated[int, Field(ge=1, le=65_536)]
PollInterval = Annotated[Nanoseconds, Field(ge=1)]
Scalar = bool | int | float | str
Settings = dict[str, Scalar]


class Hardware(Section):
    """`[hardware]`: names in the catalogues of `blink.model.data`. Defaults: paper sec 6."""

    gpu: Name = "h100-96gb"
    host: Name = "xeon-6336y-2s"
    dpu: Name = "bluefield3"
    link: Name = "connectx6-200g"
    profile: Name | None = Field(
        default=None,
        description="a measured machine by name or JSON file, or a fitted profile's file: its "
        "constants replace the catalogue's",
    )


class Engine(Section):
    """`[engine]`: limits of the inference engine, the same for every system that runs it.

    None leaves a limit to the control plane's own default.
    """

    batch_max: Batch | None = Field(default=None, description="sequences decoded in one step")
    prefill_batch_max: Batch = Field(default=8, description="prompts prefilled together")
    prefill_tokens_max: Count | None = Field(default=None, description="prompt tokens in one step")
    context_tokens_max: Tokens = Field(default=8192, description="input + output of one request")
    kv_block_tokens: Count = 16
    kv_blocks: Count | None = Field(default=None, description="instead of what memory allows")
    memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    graph_cache: bool = Field(default=True, description="false: no graphs but the maximal one")
    launch_mode: Literal["fire_and_forget", "tail_chain", "auto"] = Field(
        default="fire_and_forget", description="auto: tail chain for prefills alone"
    )
    window_launches_max: Annotated[int, Field(ge=2, le=120)] = Field(
        default=120, description="fire-and-forget launches in one execution of the scheduler"
    )
    prefill_chunk_tokens: Annotated[int, Field(ge=16, le=1_000_000)] | None = Field(
        default=None, description="longer prompts are computed in chunks, decode steps between them"
    )
    prefix_caching: bool = Field(
        default=False, description="requests whose prompts begin alike share KV blocks"
    )
    kv_offload_gb: Annotated[float, Field(ge=0, le=100_000)] = Field(
        default=0.0, description="host memory for preempted KV caches, 10^9 bytes; 0: recompute"
    )
    tensor_parallel: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1, description="GPUs of one host that share the model"
    )
    fast_forward: bool = Field(default=True, description="advance steps at once; changes no result")
    provider: Literal["null", "torch", "tensorrt"] = Field(
        default="null",
        description="who computes on a real GPU; null: a spin as long as the twin's step",
    )
    weights: Name = Field(default="random", description='"random", or a folder of safetensors')


class Speculation(Section):
    """`[speculation]`: a draft proposes tokens, the model verifies them in one step. 0: off.

    `acceptance` is the chance that a drafted token is right. Without `draft_model` the draft is
    looked up in the text so far and costs the GPU nothing.
    """

    draft_tokens: Annotated[int, Field(ge=0, le=16)] = 0
    acceptance: Fraction | None = None
    draft_model: Name | None = None

    @model_validator(mode="after")
    def _acceptance(self) -> Self:
        if self.draft_tokens and self.acceptance is None:
            raise conflict('draft_tokens needs "acceptance", the chance that a token is right')
        return self


class Ring(Section):
    """`[ring]`: slots, and the longest prompt and output that one slot holds."""

    slots: Annotated[int, Field(ge=1, le=4096)] = 4096
    prompt_tokens_max: Tokens = 8192
    output_tokens_max: Tokens = 8192


class FrontEnd(Section):
    """`[front_end]`: the SmartNIC's half. The token reader polls between the two intervals."""

    poll_interval_min_ns: PollInterval = 5_000
    poll_interval_max_ns: PollInterval = 100_000
    slots_per_poll_max: Annotated[int, Field(ge=1, le=4096)] = 1024
    tokenizer_cores: Count = 6
    streaming_cores: Count = 7
    queue_max: Count = Field(default=4096, description="requests that may wait for a slot")

    @model_validator(mode="after")
    def _intervals(self) -> Self:
        if self.poll_interval_max_ns < self.poll_interval_min_ns:
            raise conflict("poll_interval_max_ns is below poll_interval_min_ns")
        return self


class Neighbour(Section):
    """`threads` threads of one kind of neighbour (`pbzip2`, `ninja`, `memory_thrash`)."""

    kind: Name
    threads: Count


PAPER_NEIGHBOURS = (Neighbour(kind="pbzip2", threads=45), Neighbour(kind="ninja", threads=45))


class Interference(Section):
    """`[interference]`: the neighbours of condition "interfered", and what is done against them.

    The default neighbours are the paper's evaluation (sec 6): pbzip2 and an LLVM build, 45 each.
    The mitigations apply in that condition only.
    """

    neighbours: Annotated[tuple[Neighbour, ...], sequence] = PAPER_NEIGHBOURS
    pinned_cores: Count | None = Field(default=None, description="cores kept for the server")
    llc_ways: Count | None = Field(default=None, description="cache ways kept for the server")
    huge_pages: bool = Field(default=False, description="2 MB pages for the server")


class Slo(Section):
    """`[slo]`: goodput counts requests that meet every stated objective, ms."""

    ttft_ms: Positive | None = None
    tpot_ms: Positive | None = None
    itl_ms: Positive | None = None
    e2e_ms: Positive | None = None


class Point(Section):
    """One `[[points]]` of a sweep: settings by dotted key, and a label for its row."""

    label: Name | None = None
    set: Annotated[Settings, Field(min_length=1)]


class Scenario(Section):
    """The whole page. `systems` x `conditions` x sweep points are its runs."""

    schema_version: Literal[1] = Field(
        default=1, alias="schema", description="version of this format"
    )
    title: Name
    question: Annotated[str, StringConstraints(pattern=r"\?$")] = Field(
        description="one sentence that the run answers; ends with a question mark"
    )
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1
    systems: Annotated[tuple[System, ...], sequence, Field(min_length=1)] = ("blink",)
    conditions: Annotated[tuple[Condition, ...], sequence, Field(min_length=1)] = ("isolated",)
    model: Name
    requires: Annotated[tuple[Name, ...], sequence] = Field(
        default=(), description="capabilities that a backend must have"
    )
    hardware: Hardware = Hardware()
    workload: Workload
    engine: Engine = Engine()
    speculation: Speculation = Speculation()
    ring: Ring = Ring()
    front_end: FrontEnd = FrontEnd()
    interference: Interference = Interference()
    slo: Slo = Slo()
    control_plane: dict[System, Settings] = Field(
        default={}, description="fields of a control plane's profile that this page replaces"
    )
    faults: Annotated[tuple[Fault, ...], sequence] = ()
    sweep: dict[Name, Annotated[tuple[Scalar, ...], sequence, Field(min_length=1)]] = Field(
        default={}, description='grid: "dotted.key" = [values]; every combination is run'
    )
    points: Annotated[tuple[Point, ...], sequence] = Field(
        default=(), description="listed settings, each run with every combination of the grid"
    )
    expect: Expect = Expect()

    @field_validator("systems", "conditions")
    @classmethod
    def _no_run_twice(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise conflict(f'names "{twice[0]}" twice')
        return names

    @field_validator("faults")
    @classmethod
    def _one_of_a_kind(cls, faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
        kinds = [fault.kind for fault in faults]
        twice = [kind for kind in kinds if kinds.count(kind) > 1]
        if twice:
            raise conflict(f'has the kind "{twice[0]}" twice')
        return faults
