"""Every kernel equals the plain functions: interpreted here, compiled where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.hw.engine import batches

torch = pytest.importorskip("torch", reason=batches.NEEDED)
pytest.importorskip("triton", reason=batches.NEEDED)

from blink.hw.engine.llama.config import Experts  # noqa: E402  (what follows needs torch)
from blink.hw.engine.llama.kernels import matmul  # noqa: E402
from blink.hw.engine.llama.kernels.ops import TritonOps  # noqa: E402
from blink.hw.engine.llama.ops import Batch, Cache, Heads  # noqa: E402
from blink.hw.engine.llama.reference import ReferenceOps  # noqa: E402
from blink.hw.engine.llama.weights import Layer  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter divides as numpy does
    pytest.mark.timeout(180),
]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCKS, BLOCK_TOKENS, TABLE = 40, 8, 9
PLAIN = ReferenceOps()


def normal(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return made.to(DEVICE, dtype or torch.float32)


def whole(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def batch(rows: int, new: int, **given: Any) -> Any:
    arrays = batches.inputs(rows, new)
    tensors = {each.name: torch.as_tensor(getattr(arrays, each.name)) for each in fields(Batch)}
    return Batch(**{name: each.to(DEVICE) for name, each in (tensors | given).items()})


def layer(**given: Any) -> Any:
    return Layer(**({each.name: None for each in fields(Layer)} | given))


def near(left: Any, right: Any, limit: float = 1e-5) -> bool:
    return bool((left.float() - right.float()).norm() <= limit * right.float().norm())


def test_rows() -> None:
    x, delta, weight = normal(6, 80), normal(6, 80, seed=1), normal(80, seed=2)
    given = batch(2, 3, lengths=whole(2, 0), tokens=whole(4, 198, 10**9, -3, 5, 6).view(2, 3))
    table = normal(199, 80, seed=3)
    ours = TritonOps(DEVICE)
    assert torch.equal(ours.embed(given, table), PLAIN.embed(given, table))
    assert near(ours.norm(x, weight, 1e-5), PLAIN.norm(x, weight, 1e-5))
    last = (given, x, delta, weight, 1e-5)
    assert near(ours.last_norm(*last), PLAIN.last_norm(*last))
    left, right = x.clone(), x.clone()
    assert near(
        ours.add_norm(left, delta, weight, 1e-5), PLAIN.add_norm(right, delta, weight, 1e-5)
    )
    assert torch.equal(left, right)
    assert near(ours.gated(x, normal(90, 80)), PLAIN.gated(x, normal(90, 80)))


@pytest.mark.parametrize(("rows", "depth"), [(1, 512), (5, 256), (17, 128)])
def test_products_of_few_rows(rows: int, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(rows, depth, dtype=torch.float16)
    matrix = normal(192, depth, seed=1, dtype=torch.float16)
    bias = normal(192, seed=2, dtype=torch.float16)
    asked: list[int] = []
    ours, taken = TritonOps(DEVICE), matmul.few_rows
    monkeypatch.setattr(matmul, "few_rows", _Counted(taken, asked))
    for _ in range(2):  # the second time, the counters must be zero again
        assert near(ours.linear(x, matrix, bias), PLAIN.linear(x, matrix, bias), 1e-3)
        assert near(ours.linear(x, matrix), PLAIN.linear(x, matrix), 1e-3)
        wide = torch.cat((matrix, matrix.flip(1)))[64:]
        small = x * 0.05
        assert near(ours.gated(small, wide), PLAIN.gated(small, wide), 3e-3)
    assert asked == [depth // 128] * 6
    assert ours.linear(x.float(), matrix.float()).dtype == torch.float32
    assert len(asked) == 6, "float32 is cuBLAS's"


class _Counted:
    """A kernel that notes into how many parts it was divided."""

    def __init__(self, kernel: Any, asked: list[int]) -> None:
        self._kernel, self._asked = kernel, asked

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self._asked.append(grid[1])
        return self._kernel[grid]


@pytest.mark.parametrize(
    ("heads", "normed"),
    [
        (Heads(4, 2, 32, 1e-6), False),
        (Heads(6, 2, 24, 1e-6), True),
        (Heads(3, 3, 64, 1e-6), True),
        (Heads(20, 1, 16, 1e-6), False),
    ],
)
@pytest.mark.parametrize(("new", "tile"), [(1, 16), (1, 128), (11, 16)])
def test_attention(heads: Heads, normed: bool, new: int, tile: int) -> None:
    """Decode rows with up to 70 tokens of context, in up to 5 parts; prompts of 11, 1, 7, ... ."""
    size, held = heads.head_dim, (0, 1, 16, 33, 70)
    norms = {"q_norm": normal(size, seed=5) + 1, "k_norm": normal(size, seed=6) + 1}
    given = batch(
        6,
        new,
        lengths=whole(1, 1, 1, 1, 1, 0) if new == 1 else whole(11, 1, 7, 8, 0, 3),
        positions=whole(*held, 10**6) if new == 1 else whole(0, 0, 0, 0, 99, 0),
        block_tables=torch.randperm(BLOCKS)[: 4 * TABLE].view(4, TABLE)[[0, 1, 2, 2, 3, 3]].int(),
    )
    if new > 1:
        given = replace(given, block_tables=torch.arange(6 * TABLE).view(6, TABLE).int() % BLOCKS)
    given = replace(given, block_tables=given.block_tables.to(DEVICE))
    qkv = normal(6 * new, (heads.heads + 2 * heads.kv_heads) * size, seed=1)
    found = []
    for ops in (PLAIN, TritonOps(DEVICE, work=((1000, tile, 40),))):
        keys, values = (
            normal(BLOCKS + 1, heads.kv_heads, BLOCK_TOKENS, size, seed=seed) for seed in (2, 3)
        )
        cache = Cache(keys, values, normal(72, 2, size // 2, seed=4))
        norm = norms if normed else {}
        asked = layer(attention_norm=norms["q_norm"], **norm)
        mixed = ops.attend(given, qkv.clone(), asked, cache, heads)
        if new == 1:  # once more: the counters are zero again
            mixed = ops.attend(given, qkv.clone(), asked, cache, heads)
        found.append((mixed, keys[:-1], values[:-1]))
    valid = (torch.arange(new, device=DEVICE) < given.lengths[:, None]).flatten()
    assert near(found[1][0][valid], found[0][0][valid])
    assert near(found[1][1], found[0][1])
    assert torch.equal(found[1][2], found[0][2])
    assert torch.isfinite(found[1][0]).all()


@pytest.mark.parametrize(
    ("tokens", "experts"),
    [(1, Experts(8, 3, 48, True)), (7, Experts(5, 2, 33, False)), (70, Experts(4, 2, 48, True))],
)
def test_a_mixture(tokens: int, experts: Experts) -> None:
    x, router = normal(tokens, 40), normal(tokens, experts.count, seed=1)
    asked = layer(
        gate_up=normal(experts.count, 2 * experts.width, 40, seed=2),
        down=normal(experts.count, 40, experts.width, seed=3),
    )
    router[0] = 0.5  # all alike: the lowest numbers
    mixed = TritonOps(DEVICE).mix(x, router, asked, experts)
    assert near(mixed[1:], PLAIN.mix(x, router, asked, experts)[1:])
    first = torch.full_like(router[:1], -100.0)
    first[:, : experts.chosen] = 0.5
    if experts.normalised:
        assert near(mixed[:1], PLAIN.mix(x[:1], first, asked, experts))


@pytest.mark.parametrize("vocab", [5, 199, 4100])
@pytest.mark.parametrize("coarse", [False, True])
def test_drawn_tokens_are_those_of_the_rule(vocab: int, coarse: bool) -> None:
    """Coarse logits have many ties, which the lower id must win."""
    logits = normal(9, vocab) * 2
    given = {
        "lengths": whole(*[1] * 9),
        "positions": whole(*range(50, 59)),
        "temperature": torch.tensor([0, 1, 0.7, 1.5, 1, 1, 2, 1e-6, torch.nan]),
        "top_k": whole(9, 0, 3, 1, 50, 7, 0, 0, -1),
        "top_p": torch.tensor([1, 1, 1, 0.9, 0.5, 0.9, 0.3, 0.0, torch.nan]),
        "seed": torch.arange(9) * 2**40 - 3,
    }
    given = {name: each.to(DEVICE) for name, each in given.items()}
    logits = (logits * 2).round() / 2 if coarse else logits
    ours, rule = batch(9, 1, **given), batch(9, 1, **given)
    for dtype in (torch.float32, torch.float16):
        TritonOps(DEVICE).sample(ours, logits.to(dtype))
        PLAIN.sample(rule, logits.to(dtype))
        assert ours.output.tolist() == rule.output.tolist()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Triton compiles on Linux")
def test_every_kernel_compiles_for_hopper() -> None:
    program = Path(__file__).with_name("compile_kernels.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(program.parents[3])}
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
