"""What tests ask of an HTML page: that it is well formed, loads nothing, and what it says."""

from __future__ import annotations

from html.parser import HTMLParser

from blink.plan.report.markup import VOID

LOADING_TAGS = {
    *("script", "link", "img", "iframe", "object", "embed", "source", "video", "audio", "base"),
    *("form", "use", "image", "track"),
}
LOADING_ATTRIBUTES = {
    *("src", "href", "srcset", "data", "poster", "action", "background", "xlink:href", "style"),
}


class PageReader(HTMLParser):
    """Reads a page; ``problems`` says what is wrong with it, ``text`` what it shows."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.problems: list[str] = []
        self.tags: list[str] = []
        self.css = ""
        self._open: list[str] = []
        self._text: list[str] = []
        self.feed(page)
        self.close()
        if self._open:
            self.problems.append(f"never closed: {self._open}")
        for mark in ("url(", "@import", "expression("):
            if mark in self.css:
                self.problems.append(f"the style sheet has {mark}")

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._text).split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = [name for name, _ in attributes]
        if tag in LOADING_TAGS:
            self.problems.append(f"<{tag}> may load something")
        if len(set(names)) < len(names):
            self.problems.append(f"<{tag}> has an attribute twice: {names}")
        for name, value in attributes:
            if name in LOADING_ATTRIBUTES or name.startswith("on"):
                self.problems.append(f'{name}="{value}" may load something')
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.css += data
        else:
            self._text.append(data)
