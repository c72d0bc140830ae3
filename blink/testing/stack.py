"""The whole stack under Hypothesis: front ends, ring, window, policy, scheduler, and faults.

    def test_stack() -> None:
        check_stack()

Hypothesis draws a ring and chooses, step by step, what happens next; the worlds are those of
``blink check``, without reduction, and larger than it can go through. The profile that is loaded
(speedy, default, nightly) says how many; a failure is shrunk to a shortest one. pytest is not
needed, nor imported.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from blink.testing.explorer.fuzz import finish
from blink.testing.explorer.parts import FAULTS, Config
from blink.testing.explorer.world import World


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Rings of one to four slots, with any of the faults."""
    front_ends = draw(st.integers(1, 2))
    output_tokens = draw(st.integers(1, 3))
    return Config(
        slots=front_ends * draw(st.integers(1, 2)),
        front_ends=front_ends,
        requests=draw(st.integers(1, 5)),
        window=draw(st.integers(2, 5)),
        threads=draw(st.integers(1, 2)),
        faults=draw(st.frozensets(st.sampled_from(FAULTS))),
        disturbances=draw(st.integers(1, 3)),
        output_tokens=output_tokens,
        blocks=output_tokens + draw(st.integers(1, 4)),
        batch=draw(st.integers(1, 3)),
        reduced=False,
    )


def check_stack(*, settings: settings | None = None) -> None:
    """Raise Broken, naming the invariant, with a shortest example, if the stack breaks one."""
    run_state_machine_as_test(Stack, settings=settings or default_settings())


def default_settings() -> settings:
    """What check_stack uses: as many examples as the loaded profile, each of up to 60 steps."""
    return settings(
        stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


class Stack(RuleBasedStateMachine):
    """Whatever may happen next, happens; at the end, all faults stop and everything must end."""

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None

    @initialize(config=configs())
    def begin(self, config: Config) -> None:
        self.world = World(config)

    @rule(data=st.data(), steps=st.integers(1, 8))
    @precondition(lambda self: self.world is not None)
    def go_on(self, data: st.DataObject, steps: int) -> None:
        """Some steps of any kind."""
        assert self.world is not None
        for _ in range(steps):
            actions = self.world.actions()
            if self.world.done or not actions:
                return
            self.world.do(data.draw(st.sampled_from(actions)))

    def teardown(self) -> None:
        """Without further faults every request ends, and nothing is left behind."""
        if self.world is not None:
            finish(self.world, [])
