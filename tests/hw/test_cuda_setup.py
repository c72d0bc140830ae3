"""Around the kernels, without a GPU: what is taken is given back, a transport keeps its word."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from blink.hw.cuda.graphs import Grid
from blink.hw.cuda.memory import CudaTransport
from blink.hw.cuda.null_engine import NullEngine
from blink.hw.cuda.runtime import CudaError, GpuBytes
from blink.hw.cuda.scheduler import GpuConfig, GpuScheduler, SchedulerHung
from blink.hw.cuda.structs import Report
from blink.hw.engine.port import GraphShape
from blink.model.policy import GraphCache, Limits
from blink.ring_protocol.errors import QueueFull
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import Cas, Op, Publish, Read, Status, Write
from tests.hw.fake_cuda import FakeCuda, fake_cuda

RING = Geometry(slots=8, prompt_tokens_max=24, output_tokens_max=12)
LIMITS = Limits(batch_max=6, prefill_batch_max=3, prefill_tokens_max=48)
CONFIG = GpuConfig(RING, LIMITS, 40, 4, GraphCache(6, 24, (1, 2, 4, 8), (8, 16)), log_capacity=64)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    with fake_cuda(monkeypatch) as made:
        yield made


def test_the_grid_has_every_shape_that_the_policy_can_ask_for() -> None:
    grid = Grid.of(CONFIG.graph_cache, LIMITS, CONFIG.context_tokens_max)
    shapes = set(grid.shapes(LIMITS))
    for batch in range(1, LIMITS.batch_max + 1):
        assert grid.shape_of(1, batch, 1) in shapes
    for tokens in range(1, CONFIG.context_tokens_max + 1):
        bucket = CONFIG.graph_cache.prompt_bucket(tokens)
        for count in range(1, LIMITS.prefill_batch_max + 1):
            if count == 1 or count * bucket <= LIMITS.prefill_tokens_max:
                shape = grid.shape_of(0, count, tokens)
                assert shape in shapes, f"{count} prompts of {tokens} tokens"
                assert shape.batch >= count and shape.tokens >= tokens


def test_everything_that_is_taken_is_given_back(cuda: FakeCuda) -> None:
    said: list[tuple[str, int, int]] = []
    with GpuScheduler(CONFIG, NullEngine(), lambda *what: said.append(what)) as scheduler:
        scheduler.start()
        assert scheduler.check().launches_total == 0
        shapes = scheduler.graphs.execs
        assert GraphShape(True, 1, CONFIG.context_tokens_max) in shapes
    assert cuda.memory == {}
    made, destroyed = (
        cuda.calls[f"cudaGraph{what}"] for what in ("InstantiateWithFlags", "ExecDestroy")
    )
    assert made == destroyed == 2 * len(said[1:]) + 1
    assert said[-1] == ("capturing graphs", len(said) - 1, len(said) - 1)


def test_a_failing_start_gives_back_what_it_took(cuda: FakeCuda) -> None:
    cuda.fails = "cudaGraphInstantiateWithFlags"
    with pytest.raises(CudaError, match="cudaGraphInstantiateWithFlags failed"):
        GpuScheduler(CONFIG, NullEngine())
    assert cuda.memory == {}


def test_a_scheduler_that_does_not_stop_is_told(cuda: FakeCuda) -> None:
    now_s = iter(range(100))
    scheduler = GpuScheduler(CONFIG, NullEngine(), now_s=lambda: next(now_s))
    scheduler.start()
    cuda.busy = True
    with pytest.raises(SchedulerHung, match="it does not stop: the scheduler has launched 0"):
        scheduler.stop()


def test_a_heart_that_stands_still_is_told(cuda: FakeCuda) -> None:
    now_s = iter(range(100))
    scheduler = GpuScheduler(CONFIG, NullEngine(), now_s=lambda: next(now_s))
    scheduler.start()
    Report.from_address(scheduler._report.pointer).running = 1
    for _ in range(5):
        scheduler.check()
    with pytest.raises(SchedulerHung, match="no heartbeat for 5 s"):
        scheduler.check()


# --- the transport -----------------------------------------------------------------------------


def transport_of(cuda: FakeCuda, staging_bytes: int = 1 << 12) -> tuple[CudaTransport, GpuBytes]:
    ring = GpuBytes(RING.total_bytes)
    return CudaTransport(ring.pointer, ring.size, depth=8, staging_bytes=staging_bytes), ring


def test_a_batch_lands_and_completes_in_order(cuda: FakeCuda) -> None:
    transport, _ = transport_of(cuda)
    transport.post([Write(64, b"12345678"), Publish(72, 5), Read(64, 16, tag=1)])
    transport.post([Cas(72, 5, 6, tag=2), Cas(72, 5, 7, tag=3), Read(72, 8, tag=4)])
    done = transport.poll(8)
    assert [each.tag for each in done] == [1, 2, 3, 4]
    assert done[0].data == b"12345678" + bytes([5, *7 * [0]])
    assert [each.old for each in done[1:3]] == [5, 6]
    assert done[3].data == bytes([6, *7 * [0]])


def test_a_full_queue_takes_nothing(cuda: FakeCuda) -> None:
    transport, ring = transport_of(cuda)
    with pytest.raises(QueueFull):
        transport.post([Publish(64, 1, tag) for tag in range(9)])
    transport.post([Publish(64, 2, tag) for tag in range(8)])
    with pytest.raises(QueueFull):
        transport.post([Publish(64, 3)])
    assert len(transport.poll(8)) == 8
    assert int.from_bytes(cuda.memory[ring.pointer].raw[64:72], "little") == 2


def test_what_does_not_fit_the_staging_memory_waits(cuda: FakeCuda) -> None:
    transport, _ = transport_of(cuda, staging_bytes=64)
    for turn in range(20):
        transport.post([Write(64, bytes([turn] * 40)), Read(64, 8, tag=turn)])
        with pytest.raises(QueueFull):
            transport.post([Write(64, bytes(40))])
        [done] = transport.poll(1)
        assert done.data == bytes([turn] * 8)


@pytest.mark.parametrize("op", [Write(1 << 30, b"1"), Publish(4, 1), Read(-8, 8), Cas(12, 0, 1)])
def test_the_first_failure_is_the_last_success(cuda: FakeCuda, op: Op) -> None:
    transport, _ = transport_of(cuda)
    transport.post([Publish(64, 1, tag=1), op, Publish(64, 2, tag=2)])
    transport.post([Publish(64, 3, tag=3)])
    found = [(each.tag, each.status) for each in transport.poll(8)]
    assert found == [
        (1, Status.OK),
        (None, Status.REMOTE_ACCESS),
        (2, Status.FLUSHED),
        (3, Status.FLUSHED),
    ]
