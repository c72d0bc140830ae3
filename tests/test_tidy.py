"""The rules of CONTRIBUTING.md that no other tool checks.

A rule takes one file and yields what it finds. `PLANTED` holds a violation of each, because a rule
that finds nothing looks the same as a rule that cannot find anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("blink", "tests", "tools", "benchmarks", "docs", "examples", "formal", "specs")
CODE = (".py", ".cu", ".cuh", ".h", ".cpp")
TEXT = (*CODE, ".md", ".toml")
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500

# A vendor library -> the one place that may import it.
DOORS = {
    "cuda": "blink/hw/cuda/",
    "cupy": "blink/hw/cuda/",
    "matplotlib": "blink/plan/",
    "pyarrow": "blink/plan/",
    "pyverbs": "blink/hw/rdma/",
    "simpy": "blink/sim/",
    "tensorrt": "blink/hw/engine/tensorrt.py",
    "tokenizers": "blink/serve/",
    "torch": "blink/hw/engine/llama/",
    "triton": "blink/hw/engine/llama/",
}


@dataclass(frozen=True)
class File:
    path: str  # from the root, with /
    text: str

    @property
    def is_library(self) -> bool:
        return self.path.startswith("blink/") and self.path.endswith(".py")

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(ast.parse(self.text))) if self.path.endswith(".py") else ()


Rule = Callable[[File], Iterator[str]]


def functions_fit_on_a_screen(file: File) -> Iterator[str]:
    for node in file.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name} has {lines} lines, of {FUNCTION_LINES_MAX}"


def files_are_short(file: File) -> Iterator[str]:
    lines = file.text.count("\n")
    if file.path.endswith(CODE) and "/generated/" not in file.path and lines > FILE_LINES_MAX:
        yield f"{lines} lines, of {FILE_LINES_MAX}"


def no_test_sleeps(file: File) -> Iterator[str]:
    if file.path.startswith("tests/"):
        for node, name in _calls(file):
            if name.split(".")[-1] == "sleep":
                yield f"{node.lineno}: {name}(); take the virtual clock"


def nothing_is_left_for_later(file: File) -> Iterator[str]:
    if file.path != "tests/test_tidy.py":  # it has to name what it looks for
        for number, line in enumerate(file.text.splitlines(), 1):
            if mark := re.search(r"\b(?:FIXME|TODO|XXX)\b", line):
                yield f"{number}: {mark.group()}; open an issue instead"


def each_vendor_library_has_one_door(file: File) -> Iterator[str]:
    if file.is_library:
        for line, module in _imports(file):
            door = DOORS.get(module.partition(".")[0])
            if door is not None and not file.path.startswith(door):
                yield f"{line}: imports {module}, which belongs to {door}"


def the_library_never_prints(file: File) -> Iterator[str]:
    if file.is_library and file.path != "blink/cli.py":
        for node, name in _calls(file):
            spoken = name in ("print", "exit", "sys.exit", "os._exit")
            if spoken and not _is_in_main_block(node, file):
                yield f"{node.lineno}: {name}(); return or raise"


def only_the_switchboard_imports_by_name(file: File) -> Iterator[str]:
    if file.is_library and file.path != "blink/backends.py":
        for node, name in _calls(file):
            if name.split(".")[-1] in ("import_module", "__import__"):
                yield f"{node.lineno}: {name}() hides a dependency from import-linter"


def pages_name_files_that_exist(file: File) -> Iterator[str]:
    if file.path.endswith(".md"):
        folder = (ROOT / file.path).parent
        for number, line in enumerate(file.text.splitlines(), 1):
            for name in _paths_named_in(line):
                if not any((base / name).exists() for base in (ROOT, folder, ROOT / "blink")):
                    yield f"{number}: {name} does not exist"


RULES: tuple[Rule, ...] = (
    functions_fit_on_a_screen,
    files_are_short,
    no_test_sleeps,
    nothing_is_left_for_later,
    each_vendor_library_has_one_door,
    the_library_never_prints,
    only_the_switchboard_imports_by_name,
    pages_name_files_that_exist,
)

PLANTED: dict[Rule, File] = {
    functions_fit_on_a_screen: File("blink/a.py", "def f():\n" + "    pass\n" * 70),
    files_are_short: File("blink/a.py", "\n" * 501),
    no_test_sleeps: File("tests/a.py", "import time\ntime.sleep(1)\n"),
    nothing_is_left_for_later: File("specs/a.toml", "# TODO later\n"),
    each_vendor_library_has_one_door: File(
        "blink/model/a.py", "def f():\n    from simpy import x\n"
    ),
    the_library_never_prints: File("blink/a.py", "print(1)\n"),
    only_the_switchboard_imports_by_name: File("blink/a.py", "importlib.import_module(n)\n"),
    pages_name_files_that_exist: File("docs/a.md", "see `blink/no_such_file.py`\n"),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_tree_is_tidy(rule: Rule, tree: list[File]) -> None:
    found = [f"{file.path}:{problem}" for file in tree for problem in rule(file)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_planted_violation_is_found(rule: Rule) -> None:
    assert len(list(rule(PLANTED[rule]))) == 1


def test_the_tour_leads_somewhere() -> None:
    tour = (ROOT / "docs/tour.md").read_text(encoding="utf-8")
    stops = [name for line in tour.splitlines() for name in _paths_named_in(line)]
    assert any(stop.startswith("specs/") for stop in stops)
    assert any("ring_protocol/" in stop for stop in stops)


@pytest.fixture(scope="module")
def tree() -> list[File]:
    pages = list(ROOT.glob("*.md"))
    for folder in FOLDERS:
        pages += (path for path in (ROOT / folder).rglob("*") if path.suffix in TEXT)
    return [
        File(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(pages)
    ]


def _calls(file: File) -> Iterator[tuple[ast.Call, str]]:
    """Every call, with its function as written: `print`, `time.sleep`."""
    return ((node, ast.unparse(node.func)) for node in file.nodes if isinstance(node, ast.Call))


def _imports(file: File) -> Iterator[tuple[int, str]]:
    for node in file.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def _is_in_main_block(node: ast.Call, file: File) -> bool:
    """Whether the call stands under `if __name__ == "__main__":`, where a module is a program."""
    return any(
        isinstance(block, ast.If)
        and ast.unparse(block.test) == "__name__ == '__main__'"
        and block.lineno <= node.lineno <= (block.end_lineno or block.lineno)
        for block in file.nodes
    )


def _paths_named_in(line: str) -> Iterator[str]:
    """Paths in backticks (`blink/cli.py`, `specs/`) and targets of relative links."""
    for quoted in re.findall(r"`([\w.-]+(?:/[\w.-]+)*/?)`", line):
        if "/" in quoted or quoted.endswith((".py", ".md", ".toml")):
            yield quoted
    for target in re.findall(r"\]\(([^)#\s]+)", line):
        if "://" not in target:
            yield target
