"""Reports: one HTML file each, made of blocks that every command can use.

:class:`Page` and the blocks (:func:`table`, :func:`line_chart`, :func:`bar_chart`,
:func:`waterfall`, :func:`details`, :func:`provenance`) know nothing of runs or plans. A page asks
for nothing over the network, has no script, and is the same bytes for the same content.
"""

from __future__ import annotations

from blink.plan.report.axes import number
from blink.plan.report.bars import Bar, Stage, bar_chart, waterfall
from blink.plan.report.blocks import (
    Column,
    Interval,
    Page,
    Row,
    Section,
    details,
    listing,
    paragraph,
    provenance,
    side_by_side,
    table,
)
from blink.plan.report.charts import Limit, Marker, Point, Series, line_chart
from blink.plan.report.markup import Html, element
from blink.plan.report.palette import Palette

__all__ = [
    "Bar",
    "Column",
    "Html",
    "Interval",
    "Limit",
    "Marker",
    "Page",
    "Palette",
    "Point",
    "Row",
    "Section",
    "Series",
    "Stage",
    "bar_chart",
    "details",
    "element",
    "line_chart",
    "listing",
    "number",
    "paragraph",
    "provenance",
    "side_by_side",
    "table",
    "waterfall",
]
