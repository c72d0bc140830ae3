"""The world's view of a running batch: who is in it, and at which step each of them will be done.

Decode steps are counted by an *ordinal*. A sequence that joins at ordinal ``o`` and still has ``n``
tokens to emit finishes with step ``o + n - 1``, whatever happens between, unless it is preempted or
cancelled. So a heap of finish ordinals says how many identical steps may be advanced at once. With
speculation a step gives a sequence several tokens, drawn before it decodes: ``n`` then counts the
steps that give it what it still wants.
Only the world looks here: the policy counts sequences and never sees the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from blink.model.request import Request, Truth


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the engine. ``generated`` counts tokens emitted before ``joined``.

    ``pace``: with speculation, the tokens of each decode step from the first token to the last;
    ``paced`` of these steps were taken before ``joined``.
    """

    request: Request
    truth: Truth
    slot: int = -1
    generated: int = 0
    joined: int = -1
    finish: int = -1
    running: bool = False
    pace: list[int] | None = None
    paced: int = 0

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

    def steps_for(self, tokens: int) -> int:
        """How many decode steps from ``joined`` on give at least ``tokens`` tokens."""
        if self.pace is None:
            return tokens
        steps = 0
        while tokens > 0:
            tokens -= self.pace[self.paced + steps]
            steps += 1
        return steps

    def tokens_in(self, first: int, end: int) -> int:
        """The tokens that steps of ordinals ``first`` .. ``end`` - 1 give it."""
        return end - first if self.pace is None else sum(self.paces(first, end))

    def paces(self, first: int, end: int) -> list[int]:
        """The tokens of each of these steps, with speculation."""
        assert self.pace is not None
        start = self.paced - self.joined
        return self.pace[start + first : start + end]


class RunningBatch:
    """The sequences that decode together, and the ordinal of the next decode step."""

    __slots__ = ("_horizon", "_paced", "_serial", "context_tokens", "ordinal", "sequences")

    def __init__(self, *, paced: bool = False) -> None:
        """``paced``: sequences have a pace, their steps give several tokens."""
        self._paced = paced
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
        sequence.finish = self.ordinal + sequence.steps_for(left)
        sequence.running = True
        self.sequences[sequence.key] = sequence
        self.context_tokens += context_tokens
        self._mark(sequence.finish, sequence)
        after = sequence.truth.cancel_after_tokens
        if after is not None and sequence.generated < after < sequence.tokens_wanted:
            self._mark(self.ordinal + sequence.steps_for(after - sequence.generated), sequence)

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
        self.context_tokens += self.tokens_in(steps)
        self.ordinal += steps

    def tokens_in(self, steps: int) -> int:
        """The tokens that the next ``steps`` steps give the whole batch."""
        if not self._paced:
            return steps * len(self.sequences)
        first, end = self.ordinal, self.ordinal + steps
        return sum(each.tokens_in(first, end) for each in self.sequences.values())

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
        return sequence.generated + sequence.tokens_in(sequence.joined, self.ordinal)

    def leave(self, sequence: Sequence, context_tokens: int) -> None:
        """Take ``sequence`` out; ``context_tokens`` is what its cache held."""
        sequence.generated = self.emitted(sequence)
        sequence.paced += self.ordinal - sequence.joined
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
