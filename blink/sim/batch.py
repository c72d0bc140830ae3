"""The world's view of a running batch: who is in it, and at which step each of them will be done.

Decode steps are counted by an *ordinal*. A sequence that joins at ordinal ``o`` and still has ``n``
tokens to emit finishes with step ``o + n - 1``, whatever happens between, unless it is preempted or
cancelled. So a heap of finish ordinals says how many identical steps may be advanced at once.
Only the world looks here: the policy counts sequences and never sees the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from blink.model.request import Request, Truth


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the engine. ``generated`` counts tokens emitted before ``joined``."""

    request: Request
    truth: Truth
    slot: int = -1
    generated: int = 0
    joined: int = -1
    finish: int = -1
    running: bool = False

    @property
    def key(self) -> int:
        """The request's index."""
        return self.request.request_id

    @property
    def prompt_tokens(self) -> int:
        """What a prefill must compute: the prompt, and after a preemption what was generated."""
        return self.request.input_tokens + max(self.generated - 1, 0)

    @property
    def prefix_hashes(self) -> tuple[int, ...]:
        """Of the prompt; what was generated has none."""
        return self.request.prefix_hashes

    @property
    def tokens_wanted(self) -> int:
        """Where the stream ends by itself: the true length, cut by the client's limit."""
        return min(self.truth.output_tokens, self.request.output_tokens_max)


class RunningBatch:
    """The sequences that decode together, and the ordinal of the next decode step."""

    __slots__ = ("_horizon", "_serial", "context_tokens", "ordinal", "sequences")

    def __init__(self) -> None:
        self.sequences: dict[int, Sequence] = {}
        self.ordinal = 0
        self.context_tokens = 0
        self._horizon: list[tuple[int, int, int, Sequence]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self.sequences)

    def join(self, sequence: Sequence, context_tokens: int) -> None:
        """Decode ``sequence`` from the next step on; ``context_tokens`` are in its cache now."""
        left = sequence.tokens_wanted - sequence.generated
        assert left > 0 and not sequence.running
        sequence.joined = self.ordinal
        sequence.finish = self.ordinal + left
        sequence.running = True
        self.sequences[sequence.key] = sequence
        self.context_tokens += context_tokens
        self._mark(sequence.finish, sequence)
        after = sequence.truth.cancel_after_tokens
        if after is not None and sequence.generated < after < sequence.tokens_wanted:
            self._mark(self.ordinal + after - sequence.generated, sequence)

    def _mark(self, ordinal: int, sequence: Sequence) -> None:
        self._serial += 1
        heappush(self._horizon, (ordinal, self._serial, sequence.joined, sequence))

    def steps_to_next_change(self) -> int:
        """How many steps until the first sequence ends or its client leaves; at least 1."""
        horizon = self._horizon
        while horizon[0][0] <= self.ordinal or not _valid(horizon[0]):
            heappop(horizon)
        return horizon[0][0] - self.ordinal

    def advance(self, steps: int) -> None:
        """``steps`` decode steps have run."""
        self.ordinal += steps
        self.context_tokens += steps * len(self.sequences)

    def due(self) -> list[Sequence]:
        """Take off the horizon, and return, whoever has something to do at this ordinal."""
        found: list[Sequence] = []
        while self._horizon and self._horizon[0][0] <= self.ordinal:
            entry = heappop(self._horizon)
            if _valid(entry) and entry[3] not in found:
                found.append(entry[3])
        return found

    def emitted(self, sequence: Sequence) -> int:
        """How many tokens ``sequence`` has emitted by now."""
        return sequence.generated + self.ordinal - sequence.joined

    def leave(self, sequence: Sequence, context_tokens: int) -> None:
        """Take ``sequence`` out; ``context_tokens`` is what its cache held."""
        sequence.generated = self.emitted(sequence)
        sequence.running = False
        del self.sequences[sequence.key]
        self.context_tokens -= context_tokens
        if not self.sequences:
            self.context_tokens = 0
            self._horizon.clear()

    @property
    def newest(self) -> Sequence:
        """The sequence that joined last: the first to be preempted."""
        return self.sequences[next(reversed(self.sequences))]


def _valid(entry: tuple[int, int, int, Sequence]) -> bool:
    """Whether the sequence is still on the stay in the batch that the entry was made for."""
    _, _, joined, sequence = entry
    return sequence.running and sequence.joined == joined
