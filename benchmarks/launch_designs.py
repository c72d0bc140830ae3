"""Both launch designs on the same graphs of a model: what each costs, for each kind of graph.

    python benchmarks/launch_designs.py                    Llama-3-8B's shape, random weights, one GPU
    python benchmarks/launch_designs.py --model tiny-llama --json

The zero line is a graph replayed back to back by the host. A: the scheduler stays resident, launches
fire-and-forget and polls. B: it tail-launches the graph and itself, and is not there meanwhile.
"""

from __future__ import annotations

import argparse
import json
import sys
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
from blink.ring_protocol.descriptor import Descriptor
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.slot import pack
from blink.ring_protocol.states import Outcome, State

DESIGNS = {"A fire and forget": FIRE_AND_FORGET, "B tail chain": TAIL_CHAIN}
OUTPUT_TOKENS = 300


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
        replays = {shape: replay_ns(raw, 30) for shape, raw in scheduler.graphs.raw.items()}
        for batch in (1, 16):
            steps = run(scheduler, [context] * batch, OUTPUT_TOKENS)
            decided = [s.decided_ns for s in steps if s.graph == DECODE_GRAPH and s.count == batch]
            shape = GraphShape(False, batch, 1)
            rows.append(row(f"decode, batch {batch}", name, replays[shape], np.diff(decided)[20:]))
        for tokens in (128, context, 2048):
            steps = run(scheduler, [tokens] * 12, 1)
            own = [s.seen_ns - s.decided_ns for s in steps if s.graph == PREFILL_GRAPH]
            shape = GraphShape(True, 1, tokens)
            rows.append(row(f"prefill, {tokens}", name, replays[shape], np.array(own[2:])))
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


def run(scheduler: GpuScheduler, prompts: list[int], output_tokens: int) -> list[Any]:
    """Serve these prompts, all there at the start; returns the steps that served them."""
    ring = scheduler.config.geometry
    memory = GpuMemory(scheduler.ring.pointer, ring)
    before = scheduler.report().steps
    generations = []
    for slot, tokens in enumerate(prompts):
        word = memory.load_acquire(ring.metadata_offset(slot))
        generations.append((word >> 16 & 0xFFFFFF) + 1)
        prompt = b"".join((7 + at % 97).to_bytes(TOKEN_BYTES, "little") for at in range(tokens))
        memory.write(ring.prompt_offset(slot), prompt)
        wanted = Descriptor(
            slot, slot, tokens, output_tokens, 0.0, 1.0, 0, NO_TOKEN, 1, generations[-1]
        )
        memory.write(ring.descriptor_offset(slot), wanted.pack())
        pending = pack(State.PREFILL_PENDING, Outcome.NONE, generations[-1], 0)
        memory.store_release(ring.metadata_offset(slot), pending)
    scheduler.start()
    size = len(prompts) * SLOT_METADATA_BYTES
    while set(memory.read(HEADER_BYTES, size)[::SLOT_METADATA_BYTES]) != {State.DECODE_COMPLETED}:
        scheduler.check()
    scheduler.stop()
    for slot, generation in enumerate(generations):
        empty = pack(State.EMPTY, Outcome.NONE, generation, 0)
        memory.store_release(ring.metadata_offset(slot), empty)
    return scheduler.steps()[before:]


if __name__ == "__main__":
    sys.exit(main())
