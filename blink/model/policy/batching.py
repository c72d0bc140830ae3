"""What the GPU-resident scheduler does next: FCFS, continuous batching, inline prefill.

One pure function, called at every step boundary. The paper (section 4.2) pauses the running decode
for a new prompt only if

1. a pending prompt was seen by the scan that overlapped the last step,
2. a batch slot is free (slots that the last step finished count as free), and
3. the launch window still fits the prefill graph *and* the resumed decode.

When the third fails, the scheduler decodes on until the window ends: the tail relaunch comes within
``window_launches_max`` steps by itself and opens a full window. With nothing to decode it
relaunches at once. A prompt that the KV cache cannot hold waits; order is never changed to fit a
smaller one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from blink.model.policy.graphs import GraphCache


class FreeBlocks(Protocol):
    """What admission must know of a KV cache."""

    @property
    def blocks_free(self) -> int: ...

    def blocks_for(self, tokens: int) -> int:
        """The blocks that ``tokens`` tokens occupy."""


class Action(Enum):
    """The next thing to launch."""

    IDLE = "idle"
    PREFILL = "prefill"
    DECODE = "decode"
    RELAUNCH = "relaunch"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one scheduler may hold: sequences in the batch, prompts and tokens in one prefill.

    A prompt of more than ``chunk_tokens`` tokens is computed in several prefills, if that is set.
    """

    batch_max: int
    prefill_batch_max: int
    prefill_tokens_max: int
    chunk_tokens: int | None = None

    def __post_init__(self) -> None:
        assert self.batch_max >= 1
        assert 1 <= self.prefill_batch_max <= self.batch_max
        assert self.prefill_tokens_max >= 1


@dataclass(frozen=True, slots=True)
class Decision:
    """An action; for PREFILL, how many of the waiting prompts (from the front) go together."""

    action: Action
    prefill_count: int = 0


_IDLE = Decision(Action.IDLE)
_DECODE = Decision(Action.DECODE)
_RELAUNCH = Decision(Action.RELAUNCH)


def decide(
    waiting_tokens: Sequence[int],
    running: int,
    headroom_launches: int,
    kv: FreeBlocks,
    graphs: GraphCache,
    limits: Limits,
    blocks_reserved: int = 0,
    cached: Sequence[tuple[int, int]] = (),
    step_tokens: int = 1,
) -> Decision:
    """Choose the next launch.

    ``waiting_tokens`` are the prompt lengths (tokens) of claimed requests, first come first;
    ``running`` the sequences that will decode; ``headroom_launches`` what is left of the window;
    ``blocks_reserved`` the KV blocks that the running sequences' next step takes; ``cached`` what
    a prefix cache finds of each waiting prompt: tokens, and blocks that it need not take;
    ``step_tokens`` the tokens that a decode step may write for one sequence.
    """
    blocks_free = kv.blocks_free - blocks_reserved
    count = 0
    if waiting_tokens:
        count = _admissible(
            waiting_tokens, running, kv, blocks_free, graphs, limits, cached, step_tokens
        )
    launches_needed = 2 if running else 1
    if count and headroom_launches >= launches_needed:
        return Decision(Action.PREFILL, count)
    if (count or running) and headroom_launches == 0:
        return _RELAUNCH
    if running:
        return _DECODE
    return _IDLE


def decide_chunk(running: int, decoded: bool, headroom_launches: int) -> Action:
    """Choose the next launch while a prompt is computed in chunks (Agrawal et al., OSDI 2024).

    Its chunks and decode steps of the ``running`` sequences take turns; ``decoded`` says whether
    one came since the last chunk. The window must fit a chunk and the decode that follows.
    """
    launches_needed = 2 if running else 1
    if headroom_launches >= launches_needed and (decoded or not running):
        return Action.PREFILL
    return Action.DECODE if headroom_launches else Action.RELAUNCH


def _admissible(
    waiting_tokens: Sequence[int],
    running: int,
    kv: FreeBlocks,
    blocks_free: int,
    graphs: GraphCache,
    limits: Limits,
    cached: Sequence[tuple[int, int]],
    step_tokens: int,
) -> int:
    """How many prompts from the front share one prefill graph without breaking a limit.

    Prompts share a graph only within one length bucket: padding a short prompt to a long
    neighbour's bucket would delay both. What a prefix cache holds is not computed again.
    """
    room = min(limits.batch_max - running, limits.prefill_batch_max)
    bucket = 0
    blocks = 0
    for count, tokens in enumerate(waiting_tokens):
        if count >= room:
            return count
        found_tokens, found_blocks = cached[count] if cached else (0, 0)
        computed = tokens - found_tokens
        bucket = bucket or graphs.prompt_bucket(computed)
        blocks += kv.blocks_for(tokens + step_tokens) - found_blocks
        shares = graphs.prompt_bucket(computed) == bucket
        fits = count == 0 or (count + 1) * bucket <= limits.prefill_tokens_max
        if not (shares and fits and blocks <= blocks_free):
            return count
    return len(waiting_tokens)
