"""A record put together from the server's and the clients' books is the twin's record."""

from __future__ import annotations

import numpy as np
import pytest

from blink.hw.recording import ClientBook, RanStep, tables_of
from blink.model.record import ABSENT, STEP_PREFILL, RunRecord
from blink.model.scheduler import DECODE_GRAPH, PREFILL_GRAPH
from tests.setups import run, run_setup, varied


def books_of(record: RunRecord) -> tuple[ClientBook, list[RanStep]]:
    """What server and clients would have written down, had the twin's run been a real one."""
    requests, steps = record.requests, record.steps
    book = ClientBook(varied(len(requests), 8.0))
    for request in range(len(requests)):
        book.arrival_ns[request] = int(requests.arrival_ns[request])
        book.submitted_ns[request] = int(requests.submitted_ns[request])
        book.finish_ns[request] = int(requests.finish_ns[request])
        book.outcome[request] = int(requests.outcome[request])
        book.slot[request] = int(requests.slot[request])
        book.tokens_ns[request] = record.token_times_ns(request).tolist()
    computed: dict[int, list[int]] = {}
    for request, row in enumerate(requests.first_step.tolist()):
        if row != ABSENT:
            computed.setdefault(row, []).append(request)
    ran = [
        RanStep(
            decided_ns=int(steps.launched_ns[row]),
            launched_ns=int(steps.launched_ns[row]),
            start_ns=int(steps.start_ns[row]),
            end_ns=int(steps.end_ns[row]),
            seen_ns=int(steps.end_ns[row]),
            graph=PREFILL_GRAPH if steps.kind[row] == STEP_PREFILL else DECODE_GRAPH,
            count=int(steps.decode_batch[row]),
            tokens=1,
            requests=tuple(computed.get(row, ())),
        )
        for row in range(len(steps))
    ]
    return book, ran


@pytest.mark.parametrize("system", ["blink", "host_resident"])
def test_the_tables_are_the_twins(system: str) -> None:
    record = run(run_setup(system, workload=varied(40, 8.0)))
    tables = tables_of(*books_of(record))
    decodes = record.steps.kind != STEP_PREFILL
    for name in ("launched_ns", "start_ns", "end_ns", "delivered_ns", "kind", "decode_batch"):
        assert np.array_equal(getattr(tables.steps, name), getattr(record.steps, name)), name
    context, truth = tables.steps.context_tokens, record.steps.context_tokens
    assert np.array_equal(context[decodes], truth[decodes])
    for name in ("first_token_ns", "output_tokens", "first_step", "outcome"):
        assert np.array_equal(getattr(tables.requests, name), getattr(record.requests, name)), name
