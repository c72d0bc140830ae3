"""HTML and SVG elements as values: what is text is escaped, so a page is well formed by making."""

from __future__ import annotations

from html import escape
from typing import Final

VOID: Final = frozenset({"meta", "br", "hr"})
"""HTML's elements without an end tag."""


class Html(str):
    """Finished markup. Any other string is text."""

    __slots__ = ()


Child = str | None
Attribute = str | int | float | None


def element(tag: str, *children: Child, **attributes: Attribute) -> Html:
    """Return ``<tag attributes>children</tag>``; a child that is None is left out.

    In names of attributes ``_`` is written ``-``, and one at the end is dropped (``class_``). An
    attribute that is None or "" is left out. Numbers are written with at most two decimals.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for name, value in attributes.items()
        if value is not None and value != ""
    )
    if tag in VOID:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{join(*children)}</{tag}>")


def join(*children: Child) -> Html:
    """Return the children one after the other, as markup."""
    return Html(
        "".join(
            child if isinstance(child, Html) else escape(child, quote=False)
            for child in children
            if child is not None
        )
    )


def _text(value: str | int | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)
