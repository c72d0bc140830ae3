"""The front end of the ring, without a socket, a clock or a network card.

What comes in are requests and completions; what goes out are operations to post and updates for
clients. A driver, real or simulated, goes round like this:

    front_end.submit(...)                          whenever a client asks
    transport.post(front_end.take_ops(limit))      whenever something waits in the outbox
    transport.post([front_end.read_metadata(now)]) whenever `front_end.reader.due_ns` has come
    for completion in transport.poll(limit):
        for update in front_end.on_completion(completion):
            ...                                    stream its tokens, or close the stream

A driver that models the link itself may hand metadata over without a completion: `on_metadata`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from blink.ring_protocol.constants import (
    HEADER_BYTES,
    SLOT_METADATA_BYTES,
    TOKEN_BYTES,
    WORD_BYTES,
)
from blink.ring_protocol.descriptor import GREEDY, Descriptor, Sampling
from blink.ring_protocol.errors import (
    LocalViolation,
    OutputTooLong,
    PromptTooLong,
    RequestRefused,
    TransportFailed,
)
from blink.ring_protocol.front_end.request_tracker import RequestTracker, Tracked
from blink.ring_protocol.front_end.slot_tracker import SlotTracker
from blink.ring_protocol.front_end.submission import (
    Outbox,
    encode_cancel,
    encode_release,
    encode_submission,
)
from blink.ring_protocol.front_end.token_reader import Progress, TokenReader
from blink.ring_protocol.layout import Geometry
from blink.ring_protocol.ports import Completion, Op, Read, Status
from blink.ring_protocol.slot import GENERATION_MASK, GENERATION_SHIFT, pack, step, unpack
from blink.ring_protocol.states import Event, Outcome, State, Writer


class Submitted(NamedTuple):
    """A request is on its way: where, and which generation of the slot it is."""

    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class BackPressure:
    """No slot is free. The caller waits, or answers with Outcome.REJECTED; nothing has changed."""

    request_id: int
    slots_in_use: int


class Update(NamedTuple):
    """What to tell a client: `tokens` more from `first` on, and the outcome, if it is over.

    ids: those tokens, 4 bytes each, if this front end moves payload; otherwise None.
    """

    request_id: int
    first: int
    tokens: int
    outcome: Outcome | None
    ids: bytes | memoryview | None = None


class FrontEnd:
    """Submits requests to a ring and follows them to their outcomes.

    reader decides when to poll. payload: move token ids; without it only counts travel, and the
    ring needs only `geometry.control_bytes` of memory. slots: those of the ring that are this front
    end's (None: all); front ends that share a ring have disjoint ones.
    """

    def __init__(
        self,
        geometry: Geometry,
        reader: TokenReader,
        *,
        payload: bool = True,
        slots: range | None = None,
    ) -> None:
        self.geometry = geometry
        self.reader = reader
        self.slots = SlotTracker(geometry.slots, slots)
        self.requests = RequestTracker()
        self._payload = payload
        self._outbox = Outbox()
        self._next_tag = 0
        self._metadata_reads: dict[int, int] = {}  # tag -> posted_ns
        self._token_reads: dict[int, Progress] = {}
        self._orphans: dict[int, int] = {}  # slot -> generation, of an earlier front end's requests

    # --- requests ----------------------------------------------------------------------------

    def submit(
        self,
        request_id: int,
        prompt_tokens: int,
        output_tokens_max: int,
        *,
        now_ns: int,
        prompt: bytes | memoryview | None = None,
        sampling: Sampling = GREEDY,
        deadline_ns: int | None = None,
    ) -> Submitted | BackPressure:
        """Put a request into the outbox, for a free slot, or say that there is none.

        request_id: 64 bits, not in the ring now. prompt: `prompt_tokens` ids of 4 bytes.
        now_ns is written as its arrival, which is the order of service. Raises RequestRefused
        (PromptTooLong, OutputTooLong) if no slot could hold it; nothing has changed then.
        """
        self._check(request_id, prompt_tokens, output_tokens_max, prompt)
        slot = self.slots.acquire()
        if slot is None:
            return BackPressure(request_id, len(self.requests) + len(self._orphans))
        intent = step(self.slots.word(slot), Event.SUBMIT, Writer.FRONT_END, slot=slot)
        generation = (intent.desired >> GENERATION_SHIFT) & GENERATION_MASK
        descriptor = Descriptor(
            now_ns,
            sampling.seed,
            prompt_tokens,
            output_tokens_max,
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.stop_token,
            sampling.flags,
            generation,
        )
        self.requests.open(Tracked(request_id, slot, generation, output_tokens_max, deadline_ns))
        self.reader.watch(slot, generation, now_ns)
        self._outbox.put(
            encode_submission(self.geometry, slot, intent, request_id, descriptor, prompt)
        )
        return Submitted(slot, generation)

    def cancel(self, request_id: int, outcome: Outcome = Outcome.CANCELLED) -> bool:
        """Ask for a request to be aborted; False if it has ended or been asked already.

        It has not ended yet: its one outcome will come from the slot, and may still be another.
        """
        tracked = self.requests.find(request_id)
        if tracked is None or tracked.abort_asked:
            return False
        self._outbox.put(encode_cancel(self.geometry, tracked.slot, tracked.generation, outcome))
        tracked.abort_asked = outcome
        return True

    def expire(self, now_ns: int) -> list[int]:
        """Ask for the abort of every request past its deadline; returns their ids."""
        late = [tracked.request_id for tracked in self.requests.expired(now_ns)]
        return [request_id for request_id in late if self.cancel(request_id, Outcome.TIMED_OUT)]

    # --- the link ----------------------------------------------------------------------------

    @property
    def ops_waiting(self) -> int:
        """Operations in the outbox."""
        return len(self._outbox)

    def take_ops(self, ops_max: int) -> list[Op]:
        """The next batch to post, in order. Once taken, it must be posted."""
        return self._outbox.take(ops_max)

    def read_metadata(self, now_ns: int) -> Read:
        """The bulk read of one poll. The caller posts it now."""
        tag = self._tag()
        self._metadata_reads[tag] = now_ns
        return Read(HEADER_BYTES, self.geometry.metadata_bytes, tag)

    def on_completion(self, completion: Completion) -> list[Update]:
        """Take a completion of an operation of ours; returns what it means to clients.

        Raises TransportFailed for a failed one: the connection is gone, `abandon` what is open.
        """
        tag, data = completion.tag, completion.data
        if completion.status is not Status.OK:
            raise TransportFailed(tag, completion.status)
        if tag in self._metadata_reads and data is not None:
            return self.on_metadata(data, self._posted_ns(tag))
        if tag in self._token_reads and data is not None:
            return self._on_tokens(self._token_reads.pop(tag), data)
        raise LocalViolation(f"completion {tag} belongs to no read of this front end")

    def on_metadata(self, metadata: bytes | memoryview, posted_ns: int) -> list[Update]:
        """Take the metadata that a read posted at `posted_ns` returned.

        With payload, the news become reads of the tokens, and the updates come with those. Without,
        nobody streams: every token is counted, and the updates are of the requests that ended.
        """
        news = self.reader.poll(metadata, posted_ns)
        if self._orphans:
            news = [progress for progress in news if not self._is_orphan(progress)]
        if not self._payload:
            ended = [progress for progress in news if progress[3] is not None]
            self.requests.deliver_all(progress for progress in news if progress[3] is None)
            return [self._update(progress) for progress in ended]
        return [self._update(progress) for progress in news if not self._must_wait(progress)]

    @property
    def orphans(self) -> int:
        """Slots that an earlier front end left in use, and that are not free yet."""
        return len(self._orphans)

    def attach(self, metadata: bytes | memoryview) -> None:
        """Take over a ring that is not fresh: which slots are free, and their generations.

        Requests that an earlier front end left in our slots have no client any more: they are
        asked to be aborted, and each slot is released when it has completed. `metadata` must be
        from a read over a connection made after the earlier one's was destroyed, so that nothing of
        the earlier front end can still land.
        """
        self.slots.refresh(metadata)
        words = memoryview(metadata).cast("B").cast("Q")
        for slot in self.slots.own:
            word = words[slot * SLOT_METADATA_BYTES // WORD_BYTES]
            state, _, generation, _ = unpack(word, slot=slot)
            if state is State.EMPTY:
                continue
            self.slots.hold(slot)
            self._orphans[slot] = generation
            if state is State.DECODE_COMPLETED:
                self._bury(slot, word)
            else:
                self.reader.take_over(slot, word)
                asked = encode_cancel(self.geometry, slot, generation, Outcome.CANCELLED)
                self._outbox.put(asked)

    def abandon(self) -> list[Update]:
        """End every open request with FAILED: the connection is gone, and with it their slots.

        This front end is done; a new one attaches to the ring over a new connection.
        """
        self._outbox.clear()
        updates = []
        for tracked in list(self.requests):
            self.reader.unwatch(tracked.slot)
            self.requests.close(tracked, Outcome.FAILED)
            updates.append(Update(tracked.request_id, tracked.tokens, 0, Outcome.FAILED))
        return updates

    # --- inside ------------------------------------------------------------------------------

    def _check(
        self,
        request_id: int,
        prompt_tokens: int,
        output_max: int,
        prompt: bytes | memoryview | None,
    ) -> None:
        geometry = self.geometry
        if not 0 <= request_id < 1 << 64:
            raise RequestRefused("request_id", request_id, "0 to 2**64 - 1")
        if request_id in self.requests:
            raise LocalViolation(f"request {request_id} is already in the ring")
        if not 1 <= prompt_tokens <= geometry.prompt_tokens_max:
            raise PromptTooLong(
                "prompt_tokens", prompt_tokens, f"1 to {geometry.prompt_tokens_max}"
            )
        if not 1 <= output_max <= geometry.output_tokens_max:
            raise OutputTooLong(
                "output_tokens_max", output_max, f"1 to {geometry.output_tokens_max}"
            )
        if (prompt is not None) is not self._payload or (
            prompt is not None and len(prompt) != prompt_tokens * TOKEN_BYTES
        ):
            wanted = f"{prompt_tokens} tokens of {TOKEN_BYTES} bytes" if self._payload else "none"
            raise RequestRefused("prompt", None if prompt is None else len(prompt), wanted)

    def _tag(self) -> int:
        self._next_tag += 1
        return self._next_tag

    def _posted_ns(self, tag: int) -> int:
        """When this bulk read was posted. Those before it that never completed never were."""
        posted_ns = self._metadata_reads[tag]
        for earlier in [other for other in self._metadata_reads if other <= tag]:
            del self._metadata_reads[earlier]
        return posted_ns

    def _must_wait(self, progress: Progress) -> bool:
        """Send for the tokens of this news, or hold it back until those sent for are here."""
        tracked = self.requests.in_slot(progress.slot)
        if progress.tokens:
            tag = self._tag()
            offset = self.geometry.output_offset(progress.slot, progress.first)
            self._outbox.put((Read(offset, progress.tokens * TOKEN_BYTES, tag),))
            self._token_reads[tag] = progress
            tracked.reads += 1
        elif tracked.reads:
            tracked.ending = progress
        return tracked.reads > 0

    def _on_tokens(self, progress: Progress, ids: bytes | memoryview) -> list[Update]:
        tracked = self.requests.in_slot(progress.slot)
        tracked.reads -= 1
        updates = [self._update(progress, ids)]
        if tracked.ending is not None and tracked.reads == 0:
            updates.append(self._update(tracked.ending))
        return updates

    def _update(self, progress: Progress, ids: bytes | memoryview | None = None) -> Update:
        tracked = self.requests.deliver(progress)
        _, first, tokens, outcome = progress
        if outcome is not None:
            self.requests.close(tracked, outcome)
            self._release(tracked, outcome)
        # As `Update(...)`, at half the price: one is made for every slot and decode step.
        return tuple.__new__(Update, (tracked.request_id, first, tokens, outcome, ids))

    def _is_orphan(self, progress: Progress) -> bool:
        """Whether this is news of an earlier front end's request. Its end frees the slot."""
        slot, first, tokens, outcome = progress
        if slot not in self._orphans:
            return False
        if outcome is not None:
            generation = self._orphans[slot]
            self._bury(slot, pack(State.DECODE_COMPLETED, outcome, generation, first + tokens))
        return True

    def _bury(self, slot: int, completed: int) -> None:
        """Release the slot of an orphan whose flag word is `completed`."""
        del self._orphans[slot]
        intent = step(completed, Event.RELEASE, Writer.FRONT_END, slot=slot)
        self._outbox.put(encode_release(self.geometry, slot, intent))
        self.slots.release(slot, intent.desired)

    def _release(self, tracked: Tracked, outcome: Outcome) -> None:
        """Give the slot back. Only now: what was in it has been read."""
        slot = tracked.slot
        completed = pack(State.DECODE_COMPLETED, outcome, tracked.generation, tracked.tokens)
        intent = step(completed, Event.RELEASE, Writer.FRONT_END, slot=slot)
        self._outbox.put(encode_release(self.geometry, slot, intent))
        self.slots.release(slot, intent.desired)
