"""Breadth first through all worlds: what is reachable, what is broken, what never ends.

The first trace that reaches a violation is a shortest one. When everything has been seen, every
world must still be able to reach one in which all requests have ended: with that, a run in which
whatever stays possible happens at some time (strong fairness) ends every request.
"""

from __future__ import annotations

import multiprocessing
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from blink.ring_protocol.states import TRANSITIONS, Event, State
from blink.testing.explorer.copies import digest, dump, load
from blink.testing.explorer.machine import Broken
from blink.testing.explorer.parts import Action, Config
from blink.testing.explorer.world import World

BATCH_WORLDS: Final = 4096
CHUNK_WORLDS: Final = 128


@dataclass(frozen=True, slots=True)
class Violation:
    """What does not hold, and the shortest way there: which of each world's actions was taken."""

    what: str
    path: tuple[int, ...]


@dataclass(slots=True)
class Report:
    """What an exploration saw. ``frontier``: worlds seen but not gone on from.

    complete: every reachable world was gone on from; a violation on the way ends the search before.

    edges: the transitions of the table that were taken. endings: how requests ended, together.
    """

    config: Config
    states: int = 0
    transitions: int = 0
    depth: int = 0
    frontier: int = 0
    complete: bool = False
    seconds: float = 0.0
    ended: int = 0
    violations: list[Violation] = field(default_factory=list)
    edges: set[tuple[State, Event]] = field(default_factory=set)
    endings: set[tuple[str, ...]] = field(default_factory=set)

    @property
    def edges_missing(self) -> list[str]:
        """Transitions of the table that no action took."""
        return [f"{state.name} {event.name}" for state, event in TRANSITIONS.keys() - self.edges]


Expand: TypeAlias = Callable[[list[bytes]], "list[_Expansion]"]


@dataclass(slots=True)
class _Expansion:
    """All that can follow from one world: digests, and a copy of each that is new to the worker."""

    ending: tuple[str, ...] | None
    trouble: str | None = None
    following: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    edges: set[tuple[State, Event]] = field(default_factory=set)
    broken: str | None = None  # what the action after the last of `following` broke


class Search:
    """One exploration of ``config``. ``progress(states, transitions)`` is called now and then.

    budget_s: seconds after which it stops with what it has; None for none. jobs: processes; how
    many does not change what is found.
    """

    def __init__(
        self,
        config: Config,
        *,
        budget_s: float | None = None,
        jobs: int = 1,
        progress: Callable[[int, int], None] = lambda states, transitions: None,
    ) -> None:
        self.report = Report(config)
        self._budget_s = budget_s
        self._jobs = jobs
        self._progress = progress
        self._places: dict[bytes, int] = {}
        self._parent = array("q")
        self._choice = array("h")
        self._before: list[array[int]] = []  # worlds that lead to each
        self._depth = array("l")
        self._done: list[int] = []
        self._queue: deque[tuple[int, bytes]] = deque()

    def run(self) -> Report:
        """Explore until everything is seen, a violation is found, or the budget is spent."""
        report, begun = self.report, time.monotonic()
        world = World(report.config)
        self._visit(digest(world), dump(world), -1, 0)
        with _workers(self._jobs) as expand_all:
            while self._queue and not report.violations:
                self._expand_level(expand_all)
                self._progress(len(self._places), report.transitions)
                if self._budget_s is not None and time.monotonic() - begun > self._budget_s:
                    break
        report.states = len(self._places)
        report.frontier = len(self._queue)
        report.complete = not self._queue and not report.violations
        report.ended = len(self._done)
        if report.complete:
            self._check_ends()
        report.seconds = time.monotonic() - begun
        return report

    def _expand_level(self, expand_all: Expand) -> None:
        """Go on from some of the worlds in the queue, in its order."""
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_WORLDS))]
        for (place, _), expansion in zip(
            batch, expand_all([copy for _, copy in batch]), strict=True
        ):
            if expansion.ending is not None:
                self._done.append(place)
                self.report.endings.add(expansion.ending)
            for choice, (found, copy) in enumerate(expansion.following):
                self._visit(found, copy, place, choice)
            self.report.transitions += len(expansion.following)
            self.report.edges |= expansion.edges
            path = self._path(place)
            if expansion.broken is not None:
                self.report.transitions += 1
                path = (*path, len(expansion.following))
            problem = expansion.trouble or expansion.broken
            if problem is not None:
                self.report.violations.append(Violation(problem, path))
                return

    def _visit(self, found: bytes, copy: bytes | None, parent: int, choice: int) -> None:
        place = self._places.setdefault(found, len(self._places))
        if place == len(self._parent):
            assert copy is not None, "a world that a worker knows and the search does not"
            depth = self._depth[parent] + 1 if parent >= 0 else 0
            self.report.depth = max(self.report.depth, depth)
            self._depth.append(depth)
            self._parent.append(parent)
            self._choice.append(choice)
            self._before.append(array("l"))
            self._queue.append((place, copy))
        if parent >= 0:
            self._before[place].append(parent)

    def _path(self, place: int) -> tuple[int, ...]:
        path = []
        while self._parent[place] >= 0:
            path.append(self._choice[place])
            place = self._parent[place]
        return tuple(reversed(path))

    def _check_ends(self) -> None:
        """Every world must have a way to one in which all is done."""
        can_end = bytearray(len(self._parent))
        stack = list(self._done)
        for place in stack:
            can_end[place] = 1
        while stack:
            for before in self._before[stack.pop()]:
                if not can_end[before]:
                    can_end[before] = 1
                    stack.append(before)
        lost = can_end.find(0)
        if lost >= 0:
            what = "WORK: from here on a request never ends, whatever happens"
            self.report.violations.append(Violation(what, self._path(lost)))


def _expand(copy: bytes) -> _Expansion:
    world = load(copy)
    actions = world.actions()
    expansion = _Expansion(world.ending if world.done else None)
    if expansion.ending is not None:
        try:
            world.check_done()
        except Broken as broken:
            expansion.trouble = str(broken)
    elif not actions:
        expansion.trouble = "WORK: nothing can happen any more, and not every request has ended"
    for choice, action in enumerate(actions):
        if choice:
            world = load(copy)
        try:
            world.do(action)
        except Broken as broken:
            expansion.broken = str(broken)
            break
        expansion.edges.update(world.edges)
        found = digest(world)
        known = found in _known
        _known.add(found)
        expansion.following.append((found, None if known else dump(world)))
    return expansion


_known: set[bytes] = set()
"""Digests of worlds that this process has sent copies of, for the exploration it works on."""


def _expand_some(copies: list[bytes]) -> list[_Expansion]:
    return [_expand(copy) for copy in copies]


@contextmanager
def _workers(jobs: int) -> Iterator[Expand]:
    """A function that expands worlds in ``jobs`` processes, and gives the results in order."""
    _known.clear()
    if jobs == 1:
        yield _expand_some
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:

        def expand_all(copies: list[bytes]) -> list[_Expansion]:
            parts = [copies[at : at + CHUNK_WORLDS] for at in range(0, len(copies), CHUNK_WORLDS)]
            return [each for part in pool.map(_expand_some, parts) for each in part]

        yield expand_all


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a way: the action, in words, and the world after it; broken: the last one."""

    action: Action
    said: str
    world: World
    broken: bool = False


def replay(config: Config, path: tuple[int, ...]) -> list[Step]:
    """Go the way again, as far as the world holds.

    Raises IndexError for a path that this configuration does not have.
    """
    steps: list[Step] = []
    world = World(config)
    for choice in path:
        world = load(dump(world))
        action = world.actions()[choice]
        try:
            said = world.do(action)
        except Broken as broken:
            return [*steps, Step(action, f"{action[0]}: {broken}", world, broken=True)]
        steps.append(Step(action, said, world))
    return steps
