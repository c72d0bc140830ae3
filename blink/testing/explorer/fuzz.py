"""Random walks through rings too large to go through whole: ``blink fuzz``.

Each seed is one ring of random size with a random part of the faults (swarm testing: a fault that
is always there hides what happens without it), and one random way through it, without reduction.
Then the ring is drained: no more faults, everybody takes turns, and every request must end. The
same seed is the same walk. A way that breaks something is shortened before it is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from blink.testing.explorer.machine import Broken
from blink.testing.explorer.parts import FAULTS, Action, Config
from blink.testing.explorer.world import World

WALK_STEPS_MAX: Final = 400
DRAIN_STEPS_MAX: Final = 3_000
_PROGRESS: Final = ("submit", "land", "sample", "answer", "see", "claim", "meet", "step")


@dataclass(frozen=True, slots=True)
class Found:
    """A walk that broke something: the ring, what, and the choices that lead there."""

    seed: int
    config: Config
    what: str
    path: tuple[int, ...]


def walk(seed: int) -> Found | None:
    """One ring and one way through it, drained at the end. None if all holds."""
    rng = np.random.default_rng(seed)
    config = draw_config(rng)
    world = World(config)
    actions: list[Action] = []
    try:
        for action in wander(world, rng):
            actions.append(action)
            world.do(action)
        finish(world, actions)
    except Broken as broken:
        return _shortest(Found(seed, config, str(broken), ()), actions)
    return None


def draw_config(rng: np.random.Generator) -> Config:
    """A ring of one to six slots, and some of the faults."""
    front_ends = int(rng.integers(1, 4))
    output_tokens = int(rng.integers(1, 5))
    return Config(
        slots=front_ends * int(rng.integers(1, 3)),
        front_ends=front_ends,
        requests=int(rng.integers(1, 9)),
        window=int(rng.integers(2, 7)),
        threads=int(rng.integers(1, 4)),
        faults=frozenset(name for name in FAULTS if rng.random() < 0.5),
        disturbances=int(rng.integers(1, 5)),
        output_tokens=output_tokens,
        blocks=output_tokens + int(rng.integers(1, 6)),
        batch=int(rng.integers(1, 5)),
        reduced=False,
    )


def wander(world: World, rng: np.random.Generator) -> Iterator[Action]:
    """Any way through a world. Leaving and crashing are rare, or nothing else would happen."""
    for _ in range(WALK_STEPS_MAX):
        actions = world.actions()
        if world.done or not actions:
            return
        common = [each for each in actions if each[0] in _PROGRESS]
        if common and rng.random() < 0.9:
            actions = common
        yield actions[int(rng.integers(len(actions)))]


def finish(world: World, taken: list[Action]) -> None:
    """Without further faults every request ends, and nothing is left behind; else Broken.

    What is done on the way is appended to ``taken``.
    """
    for action in drain(world):
        taken.append(action)
        world.do(action)
    world.check_done()


def drain(world: World) -> Iterator[Action]:
    """No more faults, and each kind of progress in turn, until every request has ended."""
    for turn in range(DRAIN_STEPS_MAX):
        if world.done:
            return
        actions = [each for each in world.actions() if each[0] in _PROGRESS]
        if not actions:
            raise Broken("WORK: nothing can happen any more, and not every request has ended")
        yield actions[turn % len(actions)]
    raise Broken(f"WORK: {DRAIN_STEPS_MAX:,} steps without faults do not end every request")


def _shortest(found: Found, actions: list[Action]) -> Found:
    """Leave out what is not needed: halves, quarters, ... single actions.

    What no single action breaks (a ring that goes round for ever, or is left unclean) is left long.
    """
    config, invariant = found.config, found.what.partition(":")[0]
    path, broken = _path(config, actions)
    found = replace(found, path=path)
    if broken is None:
        return found
    size = len(actions)
    while size >= 1:
        at = 0
        while at < len(actions):
            fewer = actions[:at] + actions[at + size :]
            path, broken = _path(config, fewer)
            if broken is not None and broken.startswith(invariant + ":"):
                actions, found = fewer, replace(found, what=broken, path=path)
            else:
                at += size
        size //= 2
    return found


def _path(config: Config, actions: list[Action]) -> tuple[tuple[int, ...], str | None]:
    """The choices that these actions are, as far as they are possible; and what breaks."""
    world, path = World(config), []
    for action in actions:
        possible = world.actions()
        if action not in possible:
            continue
        path.append(possible.index(action))
        try:
            world.do(action)
        except Broken as broken:
            return tuple(path), str(broken)
    return tuple(path), None
