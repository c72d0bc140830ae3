"""`python -m blink.plan.capacity.schema_json` prints the JSON Schema of a plan, for editors."""

from __future__ import annotations

import sys

from blink.model.scenario.schema_json import schema_text
from blink.plan.capacity.page import Plan

if __name__ == "__main__":
    sys.stdout.write(schema_text(Plan, "blink.plan.capacity.schema_json"))
