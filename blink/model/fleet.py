"""What a run of several replicas returns: a record of each, and whose requests they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from blink.model.metrics import inter_token_gaps, per_request_ns
from blink.model.record import DecodeRanges, RequestTable, RunRecord

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FleetRecord:
    """``records`` of the replicas, each as if it had run alone on the requests it was sent.

    ``members``: of each replica, which requests of the workload those are; int64, ascending.
    """

    records: tuple[RunRecord, ...]
    members: tuple[Int64Array, ...]

    def __len__(self) -> int:
        return sum(len(each) for each in self.members)

    def column(self, name: str) -> Int64Array:
        """A column of the request table over all requests, in the workload's order."""
        return self._gather([getattr(each.requests, name) for each in self.records]).astype(
            np.int64
        )

    def per_request(self) -> dict[str, FloatArray]:
        """See :func:`blink.model.metrics.per_request_ns`, over all requests, as floats."""
        each = [per_request_ns(record) for record in self.records]
        return {
            name: self._gather([found[name] for found in each])
            for name in ("ttft", "tpot", "e2e", "done")
        }

    def inter_token_gaps(self) -> tuple[Int64Array, Int64Array]:
        """See :func:`blink.model.metrics.inter_token_gaps`, pooled over the replicas."""
        gaps, counts = zip(*(inter_token_gaps(record) for record in self.records), strict=True)
        return np.concatenate(gaps), np.concatenate(counts)

    def _gather(self, columns: Sequence[Int64Array | FloatArray]) -> FloatArray:
        whole = np.empty(len(self), dtype=np.float64)  # exact for times below 2**53 ns: 104 days
        for members, column in zip(self.members, columns, strict=True):
            whole[members] = column
        return whole


def only(record: RunRecord, members: Int64Array) -> RunRecord:
    """The record without the requests that are not ``members``: they were another replica's."""
    table, ranges = record.requests, record.decode_ranges
    kept = RequestTable(*(getattr(table, each.name)[members] for each in fields(table)))
    place = np.searchsorted(members, ranges.request)
    assert (members[place] == ranges.request).all() if len(place) else True
    return replace(
        record, requests=kept, decode_ranges=DecodeRanges(place, ranges.first, ranges.end)
    )
