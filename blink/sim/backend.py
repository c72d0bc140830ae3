"""The simulated backend: a resolved run in, a record out, in virtual time.

Same setup and seed, same bytes: time is integer nanoseconds, every random stream has its own name
and seed, and simultaneous events are shuffled by a seeded stream too (:mod:`blink.sim.clock`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from blink.model.fleet import FleetRecord
from blink.model.random import stream_of
from blink.model.record import RunRecord
from blink.model.servable import check_servable
from blink.model.setup import FleetSetup, RunSetup
from blink.sim.assembly import assemble
from blink.sim.fleet import run_fleet
from blink.sim.records import NAME, record_of

CLOCK: Final[Literal["virtual", "wall"]] = "virtual"
CAPABILITIES: Final = frozenset(
    {"ring", "launch_window", "faults.delayed_visibility", "faults.cancel", "faults.client_timeout"}
    | {"interference", "host_resident", "energy"}
)


class SimBackend:
    """The SimPy twin behind the backend interface."""

    name = NAME
    clock = CLOCK
    capabilities = CAPABILITIES

    def run(
        self,
        setup: RunSetup,
        *,
        commit: str,
        progress: Callable[[int], None] = lambda ended: None,
    ) -> RunRecord:
        """Run ``setup`` until every request has ended; ``progress(ended)`` is called as they do.

        Raises RequestDoesNotFit for a request that could never be served.
        """
        check_servable(setup)
        parts = assemble(setup, stream_of(setup.seed), progress)
        parts.run()
        return record_of(setup, parts.replicas[0], commit)

    def run_fleet(
        self,
        setup: FleetSetup,
        *,
        commit: str,
        progress: Callable[[int], None] = lambda ended: None,
    ) -> FleetRecord:
        """Run replicas behind a router, as ``run`` does one server."""
        for each in setup.replicas:
            check_servable(each)
        return run_fleet(setup, commit, progress)
