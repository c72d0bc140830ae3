"""The world's requests as sequences of the twin."""

from __future__ import annotations

from blink.model.random import RandomStreams
from blink.model.setup import RunSetup
from blink.model.world import requests_of
from blink.sim.batch import Sequence


def sequences(setup: RunSetup, streams: RandomStreams) -> list[Sequence]:
    """Return one sequence a request: what the system sees, and the truth with its faults."""
    return [Sequence(request, truth) for request, truth in requests_of(setup, streams)]
