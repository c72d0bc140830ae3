"""The torch engine on a GPU: is it right, can its graphs be launched from the device, how fast.

    python benchmarks/engine.py                  everything: about two minutes on an H200
    python benchmarks/engine.py --json
    python benchmarks/engine.py --model qwen3-30b-a3b --dtype bfloat16

It checks the kernels against plain torch on the CPU in float32 and against Hugging Face's models
(random small ones, dense and a mixture of experts), and the sampling kernels against the rule,
token for token. Then it captures the model's shapes with random weights, instantiates each graph
for device launch, and times replays from the host: what a step costs before any scheduler.

On one H200 (driver 580.159, CUDA 13.0, torch 2.11, Triton 3.6), 2026-12-01, median ms of a replay:

    llama3-8b, float16             decode 1 / 16 / 64: 4.27 / 4.73 / 5.81   (floor 3.5 at 4.3 TB/s)
                                   prefill 128 / 512 / 2048: 5.5 / 13.4 / 52.9
    qwen3-30b-a3b, bfloat16        decode 1 / 16 / 64: 3.59 / 12.4 / 17.8   (floors 1.4, 9.3, 13.8)
                                   prefill 128 / 512 / 2048: 7.4 / 11.6 / 38.6
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import runtime as cuda

sys.path.insert(0, str(Path(__file__).parents[1]))

from blink.hw.engine.llama import open_engine
from blink.hw.engine.llama.kernels.ops import TritonOps
from blink.hw.engine.llama.ops import Batch
from blink.hw.engine.llama.reference import ReferenceOps
from blink.hw.engine.llama.shapes import SHAPES
from blink.hw.engine.port import GraphShape, Inputs

SMALL = ("tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-qwen3-moe")
DECODES, PREFILLS = (1, 16, 64), (128, 512, 2048)
CONTEXT, BLOCK_TOKENS = 512, 16
REPEATS = 40
LIMITS = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 6e-2}
"""relative error of logits: float32 arithmetic, and two rounding ones, over a few layers"""
MIXTURE = 3
"""how much more a mixture may err: rounding can change which expert a token takes"""
LARGER = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
"""large enough that every kernel has a part in it"""


def inputs(device: str, rows: int, new: int, blocks: int, **given: Any) -> Inputs:
    """Inputs of zeros, but what is given."""
    arrays = {
        "tokens": torch.zeros(rows, new, dtype=torch.int32),
        "lengths": torch.full((rows,), new, dtype=torch.int32),
        "positions": torch.zeros(rows, dtype=torch.int32),
        "block_tables": torch.zeros(rows, blocks, dtype=torch.int32),
        "temperature": torch.zeros(rows),
        "top_k": torch.zeros(rows, dtype=torch.int32),
        "top_p": torch.ones(rows),
        "seed": torch.zeros(rows, dtype=torch.int64),
        "output": torch.zeros(rows, dtype=torch.int32),
    }
    return Inputs(**{name: each.to(device) for name, each in (arrays | given).items()})


# --- is it right ----------------------------------------------------------------------------------


def check_models() -> list[dict[str, Any]]:
    """Every small model in every dtype against the oracle; float32 against Hugging Face too."""
    rows = []
    for name in SMALL:
        with tempfile.TemporaryDirectory() as folder:
            theirs = _hugging_face(name, folder)
            oracle = _run(folder, "float32", "cpu", theirs)
            rows += [
                {"check": name, "against": "cpu float32", "dtype": dtype}
                | _compare(_run(folder, dtype, "cuda", theirs), oracle, _limit(name, dtype))
                for dtype in LIMITS
            ]
            rows[-3]["hugging_face"] = f"{_error(oracle['first'], oracle['theirs']):.1e}"
    return rows


def _hugging_face(name: str, folder: str) -> Any:
    import transformers

    fields = SHAPES[name] | LARGER
    architecture = fields["architectures"][0]
    config = getattr(transformers, architecture.replace("ForCausalLM", "Config"))(**fields)
    torch.manual_seed(1)
    model = getattr(transformers, architecture)(config).eval()
    for weight in model.parameters():
        weight.data.normal_(1.0 if weight.ndim == 1 else 0.0, 0.1)
    model.save_pretrained(folder)
    return model


def _run(folder: str, dtype: str, device: str, theirs: Any) -> dict[str, torch.Tensor]:
    """Two prompts of unequal length and a padding row, then decode steps that are forced."""
    engine = open_engine(folder, weights=folder, dtype=dtype, device=device)
    engine.prepare(64, BLOCK_TOKENS)
    random = torch.Generator().manual_seed(5)
    text = torch.randint(0, 199, (3, 120), generator=random, dtype=torch.int32)
    lengths = torch.tensor([100, 0, 67], dtype=torch.int32)
    tables = torch.randperm(64, generator=random)[:24].view(3, 8).int()
    prompt = inputs(device, 3, 100, 8, tokens=text[:, :100], lengths=lengths, block_tables=tables)
    found = {"first": engine.logits(GraphShape(True, 3, 100), prompt)[[0, 2]].float().cpu()}
    with torch.inference_mode():
        asked = (text[:1, :100], text[2:, :67])
        found["theirs"] = torch.cat([theirs(each.long()).logits[:, -1] for each in asked])
    for step in range(8):
        places = lengths + step
        tokens = text.gather(1, places[:, None].long())
        one = inputs(
            device, 3, 1, 8, tokens=tokens, lengths=(lengths > 0).int(), block_tables=tables
        )
        one.positions.copy_(places)
        found["last"] = engine.logits(GraphShape(False, 3, 1), one)[[0, 2]].float().cpu()
    engine.close()
    return found


def _compare(ours: dict[str, Any], oracle: dict[str, Any], limit: float) -> dict[str, Any]:
    prompt, decode = _error(ours["first"], oracle["first"]), _error(ours["last"], oracle["last"])
    return {
        "prompt": f"{prompt:.1e}",
        "decode": f"{decode:.1e}",
        "ok": prompt < limit and decode < limit,
    }


def _limit(name: str, dtype: str) -> float:
    return LIMITS[dtype] * (MIXTURE if "num_experts" in SHAPES[name] else 1)


def _error(ours: torch.Tensor, oracle: torch.Tensor) -> float:
    return float((ours - oracle).norm() / oracle.norm())


def check_sampling(vocab: int = 128_256, batch: int = 48) -> list[dict[str, Any]]:
    """The kernels' tokens against the rule's, every row with parameters of its own."""
    random = torch.Generator().manual_seed(3)
    rows = []
    for spread in (0.5, 4.0):
        logits = (torch.randn(batch, vocab, generator=random) * spread).half()
        settings = {
            "temperature": torch.tensor([0.0, 1.0, 0.7, 1.3])[torch.arange(batch) % 4],
            "top_k": torch.tensor([0, 50, 0, 1, 1000], dtype=torch.int32)[torch.arange(batch) % 5],
            "top_p": torch.tensor([1.0, 0.9, 0.5])[torch.arange(batch) % 3],
            "seed": torch.randint(-(2**62), 2**62, (batch,), generator=random),
        }
        drawn = []
        for device, ops in (("cpu", ReferenceOps()), ("cuda", TritonOps(torch.device("cuda")))):
            given = inputs(device, batch, 1, 1, **settings)
            tensors = Batch(*(getattr(given, name) for name in Batch.__slots__))
            ops.sample(tensors, logits.to(device))
            drawn.append(tensors.output.cpu())
        differ = int((drawn[0] != drawn[1]).sum())
        rows.append({"check": f"sampling, spread {spread}", "rows": batch, "ok": differ == 0})
    return rows


# --- how fast -----------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Capture, instantiate for device launch, replay: a row for each graph."""
    engine = open_engine(options.model, dtype=options.dtype)
    blocks_a_row = CONTEXT // BLOCK_TOKENS + 1
    blocks = max(max(DECODES) * blocks_a_row, max(PREFILLS) // BLOCK_TOKENS)
    begun = time.perf_counter()
    engine.prepare(blocks, BLOCK_TOKENS)
    torch.cuda.synchronize()
    needed = engine.bytes_needed(blocks, BLOCK_TOKENS)
    rows: list[dict[str, Any]] = [
        {
            "model": options.model,
            "prepare_s": round(time.perf_counter() - begun, 1),
            "bytes_needed": needed,
            "bytes_allocated": torch.cuda.memory_allocated(),
        }
    ]
    random = torch.Generator("cuda").manual_seed(1)
    tables = torch.randperm(blocks, generator=random, device="cuda").int()
    for batch in range(max(DECODES)):  # a cache of zeros would be faster than a true one
        row = tables[batch * blocks_a_row :][None, :blocks_a_row]
        prompt = inputs("cuda", 1, CONTEXT, blocks_a_row, block_tables=row)
        prompt.tokens.random_(0, engine.config.vocab, generator=random)
        engine.compute(GraphShape(True, 1, CONTEXT), prompt)
    for batch in DECODES:
        given = inputs("cuda", batch, 1, blocks_a_row)
        given.positions.fill_(CONTEXT - 1)
        given.block_tables.copy_(tables[: batch * blocks_a_row].view(batch, -1))
        rows.append(_graph(engine, GraphShape(False, batch, 1), given, random))
    for tokens in PREFILLS:
        given = inputs("cuda", 1, tokens, max(blocks_a_row, tokens // BLOCK_TOKENS))
        given.block_tables.copy_(tables[: given.block_tables.shape[1]])
        rows.append(_graph(engine, GraphShape(True, 1, tokens), given, random))
    engine.close()
    return rows


def _graph(engine: Any, shape: GraphShape, given: Inputs, random: Any) -> dict[str, Any]:
    given.tokens.random_(0, engine.config.vocab, generator=random)
    begun = time.perf_counter()
    graph = cuda.cudaGraph_t(engine.capture(shape, given, lambda _: None, lambda _: None))
    captured_s = time.perf_counter() - begun
    executable = _called(
        cuda.cudaGraphInstantiateWithFlags(
            graph, cuda.cudaGraphInstantiateFlags.cudaGraphInstantiateFlagDeviceLaunch
        )
    )
    stream = torch.cuda.Stream()
    raw = cuda.cudaStream_t(stream.cuda_stream)
    _called(cuda.cudaGraphUpload(executable, raw))
    times = []
    with torch.cuda.stream(stream):
        for _ in range(REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            _called(cuda.cudaGraphLaunch(executable, raw))
            end.record()
            times.append((begin, end))
    stream.synchronize()
    milliseconds = sorted(begin.elapsed_time(end) for begin, end in times[5:])
    kinds = _kinds(graph)
    _called(cuda.cudaGraphExecDestroy(executable))
    return {
        "graph": f"{'prefill' if shape.prefill else 'decode'} {shape.batch} x {shape.tokens}",
        "ms": round(statistics.median(milliseconds), 3),
        "ms_least": round(milliseconds[0], 3),
        "nodes": kinds,
        "capture_s": round(captured_s, 2),
    }


def _kinds(graph: Any) -> dict[str, int]:
    """How many nodes of each kind."""
    _, count = _called(cuda.cudaGraphGetNodes(graph))
    nodes, count = _called(cuda.cudaGraphGetNodes(graph, count))
    kinds: dict[str, int] = {}
    for node in nodes[:count]:
        kind = _called(cuda.cudaGraphNodeGetType(node)).name.removeprefix("cudaGraphNodeType")
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def _called(result: tuple[Any, ...]) -> Any:
    """What a function of the runtime returned beside its error, which must be success."""
    if result[0] != cuda.cudaError_t.cudaSuccess:
        raise SystemExit(f"CUDA: {result[0].name}")
    return result[1] if len(result) == 2 else result[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--no-checks", action="store_true")
    options = parser.parse_args()
    rows = [] if options.no_checks else [*check_models(), *check_sampling()]
    rows += measure(options)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print("  ".join(f"{name} {value}" for name, value in row.items()))
    return 0 if all(row.get("ok", True) for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
