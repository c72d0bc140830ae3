"""Where the time of each request went, part by part, from its record: nothing is left over.

For every request the parts of :attr:`CriticalPath.first` sum to its TTFT, those of
:attr:`CriticalPath.later` to the time between its first and its last token, in whole nanoseconds.
Times that the record holds divide the way (arrival, in the front end's hands, scheduled, the steps'
begins and ends, delivery). Where a stretch between two of them has several things in it, each gets
what it takes when nothing is in its way, by the run's resolved constants, and what is left is
waiting: a queue, a poll, a thread that was late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from blink.model.metrics import COMPLETED, NS_PER_MS
from blink.model.record import ABSENT, STEP_MIXED, Int64Array, RunRecord
from blink.model.setup import RunSetup, graph_cache
from blink.model.step_table import step_time
from blink.ring_protocol.constants import DESCRIPTOR_BYTES, TOKEN_BYTES, WORD_BYTES

# The parts, in the order in which a request meets them.
NETWORK_IN: Final = "network in"
TOKENIZER: Final = "tokenizer"
FRONT_END: Final = "front end busy"
TO_ENGINE: Final = "to the engine"
SCAN: Final = "scan"
QUEUE: Final = "queue"
CONTROL: Final = "control"
STEP: Final = "step"
READER: Final = "output waits"
FROM_ENGINE: Final = "from the engine"
DETOKENIZER: Final = "detokenizer"
NETWORK_OUT: Final = "network out"
FIRST_PARTS: Final = (
    *(NETWORK_IN, TOKENIZER, FRONT_END, TO_ENGINE, SCAN, QUEUE, CONTROL, STEP),
    *(READER, FROM_ENGINE, DETOKENIZER, NETWORK_OUT),
)
OTHERS_PROMPTS: Final = "prompts of others"
PREEMPTED: Final = "preempted"
DELIVERY: Final = "delivery"
LATER_PARTS: Final = (STEP, OTHERS_PROMPTS, CONTROL, PREEMPTED, DELIVERY)

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Where the time of a run's requests went; int64 arrays of shape (requests,), ns.

    ``first`` has the parts of TTFT, ``later`` those of the time from the first to the last token;
    all are 0 for a request without a first token. ``with_constants``: the record's stretches are
    divided by the resolved constants; if not, they are whole, each under the part it waits in.
    ``streams`` are the rows of the decode ranges by request and time, and the requests in that
    order.
    """

    record: RunRecord
    first: dict[str, Int64Array]
    later: dict[str, Int64Array]
    with_constants: bool
    steps: StepWork
    streams: tuple[Int64Array, Int64Array]

    def ttft_ms(self) -> dict[str, float]:
        """Mean of each part over completed requests, ms: they sum to the run's mean TTFT."""
        done = np.isin(self.record.requests.outcome, COMPLETED)
        count = max(int(done.sum()), 1)
        return {name: int(ns[done].sum()) / count / NS_PER_MS for name, ns in self.first.items()}

    def inter_token_ms(self) -> dict[str, float]:
        """Mean of each part over tokens after the first, ms: they sum to the mean time a token.

        That is the time between first and last tokens over the tokens in it, of all requests. It
        is the mean ITL where every token is a chunk of its own, and less where chunks hold several.
        """
        count = max(self.later_tokens, 1)
        return {name: int(ns.sum()) / count / NS_PER_MS for name, ns in self.later.items()}

    @property
    def later_tokens(self) -> int:
        """How many tokens came after a first one."""
        ranges = self.record.decode_ranges
        return int((ranges.end - ranges.first).sum())

    def worst_gap(self, request: int) -> dict[str, int]:
        """The parts of the longest gap in a request's stream, ns; all 0 below two tokens."""
        ranges, rows = self.record.decode_ranges, self.record.steps.decodes
        delivered = self.record.steps.delivered_ns
        order, sorted_requests = self.streams
        first, end = np.searchsorted(sorted_requests, [request, request + 1])
        worst, found = -1, dict.fromkeys(LATER_PARTS, 0)
        before = int(self.record.requests.first_step[request])
        for place, index in enumerate(order[first:end].tolist()):
            stream = np.concatenate([[before], rows[ranges.first[index] : ranges.end[index]]])
            gaps = np.diff(delivered[stream])
            at = int(gaps.argmax())
            if gaps[at] > worst:
                again = place > 0 and at == 0
                worst = int(gaps[at])
                found = self._gap(int(stream[at]), int(stream[at + 1]), preempted=again)
            before = int(stream[-1])
        return found

    def _gap(self, after: int, until: int, *, preempted: bool) -> dict[str, int]:
        """The parts of the gap between the tokens of two steps of a stream, ns."""
        steps, table = self.steps, self.record.steps
        computing = int(steps.end_ns[until] - steps.end_ns[after])
        own = min(int(steps.own_ns[until]), computing)
        work = int(steps.work_before[until + 1] - steps.work_before[after + 1])
        others = 0 if preempted else min(max(work - int(steps.own_ns[until]), 0), computing - own)
        rest = computing - own - others
        gap = int(table.delivered_ns[until] - table.delivered_ns[after])
        return {
            STEP: own,
            OTHERS_PROMPTS: others,
            CONTROL: 0 if preempted else rest,
            PREEMPTED: rest if preempted else 0,
            DELIVERY: gap - computing,
        }


def critical_path(record: RunRecord, setup: RunSetup | None) -> CriticalPath:
    """Divide the times of ``record``; ``setup`` is what it ran with.

    Without ``setup``, or for a record of another backend than the twin (whose costs are not the
    constants'), nothing is divided by constants.
    """
    if record.backend != "sim":
        setup = None
    steps = StepWork.of(record, setup)
    costs = None if setup is None else _Costs(setup)
    order = np.lexsort((record.decode_ranges.first, record.decode_ranges.request))
    return CriticalPath(
        record,
        first=_first(record, steps, costs),
        later=_later(record, steps),
        with_constants=costs is not None,
        steps=steps,
        streams=(order, record.decode_ranges.request[order]),
    )


# --- steps -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepWork:
    """The GPU's work of each step, ns, int64 of shape (steps,), with running sums before it.

    ``own_ns`` is the part of a step that its decoding sequences would have taken alone: all of a
    decode step, none of a prefill. ``work_before[r]`` sums the work of rows before ``r``.
    """

    end_ns: Int64Array
    work_ns: Int64Array
    own_ns: Int64Array
    work_before: Int64Array

    @classmethod
    def of(cls, record: RunRecord, setup: RunSetup | None) -> StepWork:
        table = record.steps
        before = np.concatenate([[0], table.end_ns[:-1]])[: len(table)]
        work = np.maximum(table.end_ns - np.maximum(table.start_ns, before), 0)
        own = np.where(table.decode_batch > 0, work, 0)
        if setup is not None:
            mixed = np.flatnonzero(table.kind == STEP_MIXED)
            own[mixed] = np.minimum(work[mixed], _decode_alone_ns(record, setup, mixed))
        return cls(table.end_ns, work, own, np.concatenate([[0], np.cumsum(work)]))

    def work_between(self, after: Int64Array, until: Int64Array) -> Int64Array:
        """The GPU's work in the rows after ``after``, up to ``until`` and with it."""
        return self.work_before[until + 1] - self.work_before[after + 1]


def _decode_alone_ns(record: RunRecord, setup: RunSetup, rows: Int64Array) -> Int64Array:
    """What the decoding part of mixed steps would have taken without the prompts."""
    timing, graphs, table = step_time(setup), graph_cache(setup), record.steps
    alone: list[int] = []
    for batch, context in zip(
        table.decode_batch[rows].tolist(), table.context_tokens[rows].tolist(), strict=True
    ):
        computed = batch if graphs is None else graphs.decode_batch(batch)
        alone.append(int(timing.decode_ns(batch, context, 1, computed)[0]))
    return np.array(alone, dtype=np.int64)


# --- to the first token ----------------------------------------------------------------------


def _first(record: RunRecord, steps: StepWork, costs: _Costs | None) -> dict[str, Int64Array]:
    """The parts of TTFT. Each stretch between two times of the record is divided by itself."""
    table = record.requests
    parts = {name: np.zeros(len(table), dtype=np.int64) for name in FIRST_PARTS}
    who = np.flatnonzero(table.first_step != ABSENT)
    if not len(who):
        return parts
    row = table.first_step[who]
    arrival, submitted = table.arrival_ns[who], table.submitted_ns[who]
    scheduled, end = table.scheduled_ns[who], steps.end_ns[row]
    inputs = table.input_tokens[who]
    # The step in which the engine first worked on it; only a record of real clocks may be unsure.
    begun = np.minimum(np.searchsorted(record.steps.launched_ns, scheduled), row)
    in_flight = steps.end_ns[np.maximum(begun - 1, 0)] - scheduled
    in_flight[begun == 0] = 0
    tokens = record.steps.decode_batch[row] + np.bincount(row, minlength=len(record.steps))[row]

    def divide(total: Int64Array, costs_ns: dict[str, Int64Array], rest: str) -> None:
        for name, cost in costs_ns.items():
            taken = np.clip(cost, 0, np.maximum(total, 0))
            parts[name][who] += taken
            total = total - taken
        parts[rest][who] += total

    way_in = costs.way_in(inputs) if costs else {}
    to_engine = costs.to_engine(inputs) if costs else {}
    way_out = costs.way_out(tokens) if costs else {}
    divide(submitted - arrival, way_in, FRONT_END)
    divide(scheduled - submitted, to_engine, QUEUE)
    own = steps.work_between(begun - 1, row)
    divide(end - scheduled, {STEP: own, QUEUE: np.maximum(in_flight, 0)}, CONTROL)
    divide(table.first_token_ns[who] - end, way_out, READER)
    return parts


class _Costs:
    """What each part of the way takes when nothing is in its way, by the resolved constants, ns."""

    def __init__(self, setup: RunSetup) -> None:
        self.setup = setup
        self._on_dpu = setup.plane.front_end == "dpu"
        self._on_gpu = setup.plane.processes == 0

    def way_in(self, inputs: Int64Array) -> dict[str, Int64Array]:
        """From the client into the front end's hands: network, parsing and tokenizing."""
        setup, dpu, plane = self.setup, self.setup.dpu, self.setup.plane
        network_ns = setup.link.client_latency_ns
        if self._on_dpu:
            work = dpu.http_request_ns + np.rint(inputs * dpu.tokenize_ns_per_token)
        else:
            network_ns += plane.client_request_ns
            work = plane.api_request_ns + np.rint(inputs * plane.api_tokenize_ns_per_token)
            work = np.rint(work / setup.host.speed)
        return {NETWORK_IN: np.full_like(inputs, network_ns), TOKENIZER: work.astype(np.int64)}

    def to_engine(self, inputs: Int64Array) -> dict[str, Int64Array]:
        """From the front end to whoever schedules: over the ring, or from process to process."""
        setup, link = self.setup, self.setup.link
        if not self._on_gpu:
            hop = link.write_latency_ns + link.post_ns
            hop = hop if self._on_dpu else setup.plane.output_hop_ns
            return {TO_ENGINE: np.full_like(inputs, hop)}
        sizes = (DESCRIPTOR_BYTES, WORD_BYTES, WORD_BYTES)
        wire = np.rint(inputs * TOKEN_BYTES * 1e9 / link.bandwidth_bytes_s).astype(np.int64)
        wire += sum(link.per_op_ns + round(size * 1e9 / link.bandwidth_bytes_s) for size in sizes)
        posting_ns = link.post_ns + setup.dpu.doorbell_ns
        claim_ns = 0 if setup.launch_mode == "tail_chain" else setup.gpu.claim_ns
        return {
            TO_ENGINE: wire + posting_ns + link.write_latency_ns,
            SCAN: np.full_like(inputs, setup.gpu.scan_ns + claim_ns),
        }

    def way_out(self, tokens: Int64Array) -> dict[str, Int64Array]:
        """From the end of a step of so many tokens to the client."""
        setup, dpu, link, plane = self.setup, self.setup.dpu, self.setup.link, self.setup.plane
        network_ns = link.client_latency_ns
        if self._on_gpu:
            metadata_ns = round(setup.ring.slots * 16 * 1e9 / link.bandwidth_bytes_s)
            fetch_ns = 2 * (dpu.doorbell_ns + link.read_latency_ns) + metadata_ns
            rounds = -(-tokens // setup.front_end.streaming_cores)
            work = np.rint(rounds * dpu.detokenize_sse_ns_per_token).astype(np.int64)
            return {
                FROM_ENGINE: np.full_like(tokens, fetch_ns + dpu.poll_parse_ns),
                DETOKENIZER: work,
                NETWORK_OUT: np.full_like(tokens, network_ns),
            }
        update = plane.step_update_ns + plane.step_update_per_sequence_ns * tokens
        if self._on_dpu:
            hop = link.write_latency_ns + link.post_ns
            each = dpu.detokenize_sse_ns_per_token // setup.front_end.streaming_cores
            work = dpu.poll_parse_ns + np.rint(tokens * each)
        else:
            hop = plane.output_hop_ns
            network_ns += plane.client_chunk_ns
            work = plane.api_step_ns + tokens * (plane.api_token_ns + plane.api_chunk_ns)
            work = np.rint(work / setup.host.speed)
        return {  # first what is the same each time, then what jitter can make shorter
            NETWORK_OUT: np.full_like(tokens, network_ns),
            FROM_ENGINE: np.full_like(tokens, hop),
            CONTROL: np.rint(update / setup.host.speed).astype(np.int64),
            DETOKENIZER: work.astype(np.int64),
        }


# --- from the first token to the last --------------------------------------------------------


def _later(record: RunRecord, steps: StepWork) -> dict[str, Int64Array]:
    """The parts of the time between first and last token, from each request's decode ranges."""
    table, ranges, rows = record.requests, record.decode_ranges, record.steps.decodes
    parts = {name: np.zeros(len(table), dtype=np.int64) for name in LATER_PARTS}
    if not len(ranges.request):
        return parts
    order = np.lexsort((ranges.first, ranges.request))
    who, first, end = ranges.request[order], ranges.first[order], ranges.end[order]
    fresh = np.concatenate([[True], who[1:] != who[:-1]])
    before = np.where(fresh, table.first_step[who], rows[np.concatenate([[0], end[:-1]]) - 1])
    last = rows[end - 1]

    # Within a range each token follows the one of the decode step before: sums over ordinals.
    own_before = np.concatenate([[0], np.cumsum(steps.own_ns[rows])])
    inside = own_before[end] - own_before[first + 1]
    others = steps.work_between(rows[first], last) - inside
    _add(parts, who, STEP, inside)
    _add(parts, who, OTHERS_PROMPTS, others)
    _add(parts, who, CONTROL, steps.end_ns[last] - steps.end_ns[rows[first]] - inside - others)

    # Into a range it comes from its prompt's step, or from where it was preempted.
    entry = steps.end_ns[rows[first]] - steps.end_ns[before]
    own = np.minimum(steps.own_ns[rows[first]], entry)
    work = steps.work_between(before, rows[first]) - steps.own_ns[rows[first]]
    work = np.where(fresh, np.clip(work, 0, entry - own), 0)
    _add(parts, who, STEP, own)
    _add(parts, who, OTHERS_PROMPTS, work)
    _add(parts, who, CONTROL, np.where(fresh, entry - own - work, 0))
    _add(parts, who, PREEMPTED, np.where(fresh, 0, entry - own))

    delivered = record.steps.delivered_ns - record.steps.end_ns
    final = np.concatenate([fresh[1:], [True]])
    _add(parts, who[final], DELIVERY, delivered[last[final]])
    started = who[fresh]
    from_step = table.first_token_ns[started] - steps.end_ns[table.first_step[started]]
    _add(parts, started, DELIVERY, -from_step)
    return parts


def _add(parts: dict[str, Int64Array], who: Int64Array, name: str, ns: Int64Array) -> None:
    np.add.at(parts[name], who, ns)


def label_of(part: str, setup: RunSetup) -> str:
    """What a part is called for the reader of this run: RDMA or a message, GPU or host."""
    on_gpu = setup.plane.processes == 0
    on_dpu = setup.plane.front_end == "dpu"
    names = {
        FRONT_END: "front end busy",
        TO_ENGINE: "RDMA write" if on_dpu else "hop to the engine",
        CONTROL: "launch (GPU)" if on_gpu else "host",
        STEP: "step (GPU)",
        READER: "wait for a poll" if on_gpu else "output waits",
        FROM_ENGINE: "RDMA read" if on_dpu else "hop from the engine",
        OTHERS_PROMPTS: "prompts of others (GPU)",
        DELIVERY: "delivery, change",
    }
    return names.get(part, part)
