"""What goes wrong on purpose: `[[faults]]`. Each is drawn from the run's own seeded stream."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from blink.model.scenario.base import Count, Fraction, Nanoseconds, Section


class DelayedVisibility(Section):
    """Every flag store becomes visible up to `extra_ns_max` later than the link alone explains."""

    kind: Literal["delayed_visibility"]
    extra_ns_max: Nanoseconds


class Cancel(Section):
    """A `fraction` of the clients goes away after 1 to `after_tokens_max` tokens, uniformly."""

    kind: Literal["cancel"]
    fraction: Fraction
    after_tokens_max: Count


class ClientTimeout(Section):
    """A `fraction` of the clients gives up `after_ms` after it asked."""

    kind: Literal["client_timeout"]
    after_ms: Annotated[float, Field(gt=0, le=1e9)]
    fraction: Fraction = 1.0


Fault = Annotated[DelayedVisibility | Cancel | ClientTimeout, Field(discriminator="kind")]

__all__ = ["Cancel", "ClientTimeout", "DelayedVisibility", "Fault"]
