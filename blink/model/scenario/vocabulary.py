"""Which keys a page may have where, read off its JSON Schema. Used for messages only.

A page is a scenario, or another file of the same strict kind, by its pydantic model.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from blink.model.scenario.base import Section
from blink.model.scenario.locate import Path


@cache
def json_schema(page: type[Section]) -> dict[str, Any]:
    """The JSON Schema of a page, as editors read it."""
    return page.model_json_schema(by_alias=True)


def keys_at(page: type[Section], document: Any, path: Path) -> list[str]:
    """The keys that the table at `path` of `document` may have; empty if any will do."""
    return list(_resolve(page, *_walk(page, document, path)).get("properties", {}))


def kinds_at(page: type[Section], document: Any, path: Path) -> list[str]:
    """The kinds that the table at `path` may be of; empty if it has but one form."""
    node = _deref(page, _walk(page, document, path)[0])
    return list(node.get("discriminator", {}).get("mapping", {}))


def homes_of(page: type[Section], name: str) -> list[str]:
    """Dotted names of the sections that do have a key `name`, to say where a stray one belongs."""
    schema = json_schema(page)
    homes = []
    for section, node in schema["properties"].items():
        variants = node.get("oneOf", [node, node.get("items", {})])
        if any(name in _deref(page, each).get("properties", {}) for each in variants):
            homes.append(section)
    return homes


def _walk(page: type[Section], document: Any, path: Path) -> tuple[dict[str, Any], Any]:
    node = json_schema(page)
    for step in path:
        node = _step(_resolve(page, node, document), step)
        document = _child(document, step)
    return node, document


def _child(document: Any, step: str | int) -> Any:
    try:
        return document[step]
    except (KeyError, IndexError, TypeError):
        return None


def _step(node: dict[str, Any], step: str | int) -> dict[str, Any]:
    if isinstance(step, int):
        found = node.get("items", {})
    else:
        found = node.get("properties", {}).get(step) or node.get("additionalProperties") or {}
    return found if isinstance(found, dict) else {}


def _resolve(page: type[Section], node: dict[str, Any], document: Any) -> dict[str, Any]:
    node = _deref(page, node)
    if "oneOf" in node and "discriminator" in node:
        kind = document.get("kind") if isinstance(document, dict) else None
        chosen = node["discriminator"]["mapping"].get(kind)
        return _deref(page, {"$ref": chosen}) if chosen else {}
    return node


def _deref(page: type[Section], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        node = json_schema(page)["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return node
