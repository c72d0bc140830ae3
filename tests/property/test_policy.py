"""The policy admits in order, within every limit, and never leaves the GPU idle for nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blink.model.policy import Action, GraphCache, KvLedger, Limits, decide, plan_chunks

waiting_prompts = st.lists(st.integers(1, 6000), max_size=12)


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    batch = draw(st.integers(1, 64))
    return Limits(batch, draw(st.integers(1, min(batch, 8))), draw(st.integers(256, 8192)))


@given(
    waiting_prompts,
    st.integers(0, 64),
    st.integers(0, 120),
    st.integers(1, 2000),
    st.integers(0, 8),
    limits(),
)
def test_decide_keeps_every_limit(
    prompts: list[int],
    running: int,
    headroom: int,
    blocks: int,
    reserved: int,
    limit: Limits,
) -> None:
    running = min(running, limit.batch_max)
    kv, graphs = KvLedger(blocks, 16), GraphCache(limit.batch_max, 8192)
    decision = decide(prompts, running, headroom, kv, graphs, limit, reserved)
    count = decision.prefill_count
    if decision.action is Action.PREFILL:
        group = prompts[:count]
        assert 1 <= count <= min(limit.prefill_batch_max, limit.batch_max - running)
        assert sum(kv.blocks_for(p + 1) for p in group) <= blocks - reserved
        assert len({graphs.prompt_bucket(p) for p in group}) == 1, "no prompt pads another"
        assert headroom >= (2 if running else 1), "the window fits the prefill and the decode"
    else:
        assert count == 0
    if decision.action is Action.DECODE:
        assert running and headroom >= 1
    if decision.action is Action.RELAUNCH:
        assert headroom == 0
    if decision.action is Action.IDLE:
        assert running == 0, "sequences are running and the GPU is idle (WORK)"
        fits = prompts and kv.blocks_for(prompts[0] + 1) <= blocks - reserved
        assert not fits, "a prompt fits and the GPU is idle (WORK)"


@given(waiting_prompts, st.integers(0, 64), st.integers(2, 120))
def test_a_policy_that_admits_one_admits_no_fewer_with_more_room(
    prompts: list[int], running: int, headroom: int
) -> None:
    small, large = Limits(65, 2, 8192), Limits(65, 4, 8192)
    graphs = GraphCache(65, 8192)
    counts = [
        decide(prompts, running, headroom, KvLedger(10_000, 16), graphs, limit).prefill_count
        for limit in (small, large)
    ]
    assert counts[0] <= counts[1]


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 4999)), max_size=8),
    st.integers(0, 8192),
)
def test_chunks_spend_the_budget_in_order(prompts: list[tuple[int, int]], budget: int) -> None:
    prompts = [(total, min(done, total - 1)) for total, done in prompts]
    chunks = plan_chunks(prompts, budget)
    assert [chunk.position for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        total, done = prompts[chunk.position]
        assert chunk.done_tokens == done
        assert 1 <= chunk.tokens <= total - done
    wanted = sum(total - done for total, done in prompts)
    spent = sum(chunk.tokens for chunk in chunks)
    assert spent == min(budget, wanted), "budget is left while a prompt waits, or overspent"


@given(st.integers(1, 1024), st.lists(st.integers(1, 8192), min_size=1, max_size=8))
def test_a_graph_covers_what_it_runs(batch: int, prompts: list[int]) -> None:
    graphs = GraphCache(1024, 8192)
    assert batch <= graphs.decode_batch(batch) <= 1024
    assert graphs.prefill(prompts) >= len(prompts) * max(prompts)
    assert graphs.fallbacks == 0


@given(st.integers(1, 64), st.integers(1, 9000))
def test_without_a_table_everything_takes_the_fallback(batch: int, prompt: int) -> None:
    graphs = GraphCache(64, 8192, (), ())
    assert graphs.decode_batch(batch) == 64
    assert graphs.prefill([prompt]) == max(prompt, 8192)
    assert graphs.fallbacks == 1


def test_the_table_is_as_large_as_the_papers() -> None:
    """Section 4.2: 650 to 1000 graphs. Ours covers fewer shapes; its memory stays below 2 GB."""
    graphs = GraphCache(256, 8192).graphs
    assert 200 <= graphs <= 1000
    assert graphs * 3 <= 4000, "MB"
