"""The paper's evaluation: every stated figure has an answer, and the committed page is current."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from blink import backends
from blink.cli import main
from blink.model.errors import UnknownName
from blink.model.metrics import makespan_s
from blink.model.provenance import Entry, catalogue
from blink.plan.paper.evaluation import SYSTEMS, WINDOW_S, Run, grid, job_of, offered, setup_of
from blink.plan.paper.figures import FIGURES, FOLDER, draw_figures
from blink.plan.paper.orderings import OTHERWISE, SAME, TIED, ordered, orderings
from blink.plan.paper.page import page_text
from blink.plan.paper.predictions import PREDICTIONS
from blink.plan.paper.reproduce import DATA, PAGE, reproduce, summary_of, write
from blink.plan.paper.results import Results
from blink.plan.paper.runs import MissingRuns, Runs, ask
from blink.plan.paper.verdict import NOT_PREDICTED, VERDICTS, Exactness, Value, verdict
from blink.plan.paper.window import Figures, measure
from tests.shared_files import shared_file

DOCS = Path(__file__).parents[2] / "docs"


def stated() -> dict[str, Entry]:
    return {name: each for name, each in catalogue("paper.toml").items() if name[0] != "_"}


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DOCS / DATA).read_text(encoding="utf-8"))
    return document


# --- what is stated --------------------------------------------------------------------------


def test_every_stated_figure_is_predicted_or_says_why_not() -> None:
    for name, each in stated().items():
        assert (name in PREDICTIONS) != ("not_predicted" in each.labels), name


def test_what_is_suspected_or_contradicted_is_there() -> None:
    names = catalogue("paper.toml")
    used = {e.labels["suspected"] for e in stated().values() if "suspected" in e.labels}
    assert used == set(names["_suspected"].labels)
    for each in names["_contradictions"].labels.values():
        assert set(each["ids"]) <= set(stated()), each


def test_no_number_of_the_paper_is_missing_or_changed() -> None:
    text = shared_file("paper/paper_numbers.yaml").read_text(encoding="utf-8")
    blocks = re.split(r"^- id: ", text.partition("\nmissing:")[0], flags=re.MULTILINE)[1:]
    numbers = {block.split("\n", 1)[0].strip(): block for block in blocks}
    assert set(numbers) == set(stated())
    compared = 0
    for name, block in numbers.items():
        value = stated()[name].labels["stated"]
        found = re.search(r"^  value: ([-0-9.]+)$", block, flags=re.MULTILINE)
        if found and not isinstance(value, str):
            assert float(found[1]) == value, name
            compared += 1
        ends = re.search(r"^  value:\n  - ([-0-9.]+)\n  - ([-0-9.]+)\n", block, flags=re.MULTILINE)
        if ends:
            assert [float(ends[1]), float(ends[2])] == value, name
            compared += 1
    assert compared > 180


# --- the rule --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predicted", "said", "exactness", "neutral", "at_most", "expected"),
    [
        (8.474, 8.47, "exact", None, False, "as stated"),
        (8.476, 8.47, "exact", None, False, "within 10 %"),
        (156.0, 150, "approximate", None, False, "as stated"),
        (3.4, [1, 5], "range", None, False, "as stated"),
        (5.4, [1, 5], "range", None, False, "as stated"),
        (5.6, [1, 5], "range", None, False, "within 2x"),
        ((1.0, 9.0), [1, 5], "range", None, False, "within 2x"),
        ((1.0, 20.0), [1, 5], "range", None, False, "off"),
        (0.02, [0, 0.03], "range", None, True, "as stated"),
        (25.0, 21, "exact", 0, True, "within 2x"),
        (1.32, 1.35, "exact", 1, False, "within 10 %"),
        (1.25, 1.35, "exact", 1, False, "within 2x"),
        (1.05, 1.35, "exact", 1, False, "same direction"),
        (0.95, 1.35, "exact", 1, False, "off"),
        (300.0, 100, "exact", None, False, "same order of magnitude"),
        (400.0, 100, "exact", None, False, "off"),
        (-5.0, 13, "exact", 0, False, "off"),
    ],
)
def test_the_rule(
    predicted: Value,
    said: Value,
    exactness: Exactness,
    neutral: float | None,
    at_most: bool,
    expected: str,
) -> None:
    assert verdict(predicted, said, exactness, neutral=neutral, at_most=at_most) == expected


def test_an_advantage_within_one_percent_is_a_tie() -> None:
    assert [ordered(x) for x in (1.02, 1.009, 0.991, 0.98)] == [SAME, TIED, TIED, OTHERWISE]


# --- the runs --------------------------------------------------------------------------------


def test_the_grid_is_the_papers() -> None:
    runs = list(grid())
    assert len(runs) == len(set(runs)) == 4 * 4 * 13 * 2


def test_every_system_gets_the_same_requests_at_the_offered_rate() -> None:
    setups = [setup_of(Run(system, "llama3-8b", offered(4.0))) for system in SYSTEMS]
    first = setups[0].workload
    assert len(first) == 240 and first.arrival_ns[-1] < WINDOW_S * 1e9
    assert all(each.workload is first for each in setups)
    slower = setup_of(Run("blink", "llama3-8b", offered(2.0))).workload
    assert (slower.output_tokens == first.output_tokens[:120]).all()


def test_rates_are_of_the_window_and_latencies_of_all_requests() -> None:
    run = Run("trtllm", "llama3-8b", offered(2.0))
    job, setup = job_of(run), setup_of(run)
    record = backends.require("sim").run(setup, commit="", progress=lambda ended: None)
    figures, closes_ns = measure(record, job), WINDOW_S * 10**9
    tokens = [record.token_times_ns(request) for request in range(len(record.requests))]
    streamed = sum(int((times <= closes_ns).sum()) for times in tokens)
    assert figures["decode_tok_s"] == streamed / WINDOW_S
    done = int((record.requests.finish_ns <= closes_ns).sum())
    assert 0 < done < len(record.requests), "the window must cut some to mean anything"
    assert figures["completed"] == done
    assert figures["makespan_s"] == makespan_s(record) > WINDOW_S
    assert figures["ttft_ms.p50"] is not None


class Counting(Runs):
    """Runs that are not executed: a figure is made up of the run's place."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[int] = []

    def execute(self, runs: Sequence[Run], **_: Any) -> None:
        self.rounds.append(len(runs))
        self._found.update({run: made_up(run) for run in runs})


def made_up(run: Run) -> Figures:
    """Latencies that grow with the load, rates that do not beyond 8 req/s; blink is best."""
    rate = run.load.rate or 1.0
    worse = 1.0 + SYSTEMS.index(run.system) if run.system in SYSTEMS else 2.0
    worse *= 2.0 if run.interference.neighbours and run.system != "blink" else 1.0
    figures: Figures = dict.fromkeys(("throughput_req_s", "prefill_tok_s"), min(rate, 8.0) / worse)
    figures |= {"decode_tok_s": 100 / worse, "power_w": 1000.0, "served": 8.0 / max(rate, 8.0)}
    figures |= {"makespan_s": 10 * worse, "total_tok_s": 1.0, "completed": 1.0}
    for name in ("ttft", "tpot", "itl"):
        for part in ("mean", "p50", "p95", "p99", "p999"):
            figures[f"{name}_ms.{part}"] = 10.0 * rate * worse
    return figures


def test_missing_runs_are_gathered_over_all_questions() -> None:
    runs = Counting()
    one, two = (Run("blink", "llama3-8b", offered(rate)) for rate in (1.0, 2.0))

    def both(runs: Runs) -> int:
        runs([one])
        return len(runs([one, two]))

    assert ask({"first": lambda runs: len(runs([two])), "both": both}, runs) == {
        "first": 1,
        "both": 2,
    }
    assert runs.rounds == [2]
    with pytest.raises(MissingRuns, match="1 runs"):
        Runs()([one])


def test_a_load_is_serviceable_up_to_where_95_percent_are_served() -> None:
    runs = Counting()
    found = ask({"x": lambda runs: Results(runs).serviceable("blink", "phi-4")}, runs)
    assert found["x"] == pytest.approx(8 + 2 * 0.05 / 0.2)
    assert Results(runs).blink_range("phi-4") == [1, 2, 3, 4, 6, 8]
    assert Results(runs).saturation("phi-4") == 10


# --- the page --------------------------------------------------------------------------------


def test_the_committed_page_is_made_from_the_committed_data(committed: dict[str, Any]) -> None:
    assert (DOCS / PAGE).read_text(encoding="utf-8") == page_text(committed)
    assert {path.name for path in (DOCS / FOLDER).iterdir()} == set(FIGURES)


def test_the_committed_data_is_complete(committed: dict[str, Any]) -> None:
    ids = [each["id"] for each in committed["entries"]]
    assert ids == [*stated(), *orderings()]
    for each in committed["entries"]:
        if each["verdict"] not in ("as stated", "within 10 %", SAME, NOT_PREDICTED):
            assert each.get("suspected") != "not known", each["id"]


def test_the_summary_is_pinned(committed: dict[str, Any]) -> None:
    """A change of the twin that moves these has to say so here; then run `make paper`."""
    entries = committed["entries"]
    assert committed["summary"] == summary_of(entries)
    counts = {name: each["figures"] for name, each in committed["summary"].items()}
    assert counts == PINNED
    assert counts.keys() <= {*VERDICTS, SAME, TIED, OTHERWISE}


PINNED = {
    "as stated": 18,
    "within 10 %": 13,
    "within 2x": 29,
    "same order of magnitude": 9,
    "same direction": 34,
    "off": 15,
    "not predicted": 92,
    "ordered the same": 190,
    "tied": 20,
    "ordered otherwise": 29,
}


@pytest.mark.parametrize("only", ["t1.", "t2.", "t3.", "launch.", "fig3.", "order.fig1.noisy"])
def test_what_is_committed_is_what_the_twin_says(only: str, committed: dict[str, Any]) -> None:
    document, _ = reproduce(only, workers=1)
    kept = {each["id"]: each for each in committed["entries"]}
    assert document["entries"]
    for each in document["entries"]:
        old = kept[each["id"]]
        for name in ("predicted", "ratio"):
            assert each[name] == (pytest.approx(old[name], rel=1e-4) if old[name] else old[name])
        assert each["verdict"] == old["verdict"], each["id"]


@pytest.mark.parametrize(
    ("figure", "low", "high"),
    [
        ("t1.tput_iso", 0.8, 1.2),
        ("t1.p99_tpot_iso", 0.8, 1.2),
        ("t2.tpot_mean_iso", 0.85, 1.15),
        ("t2.tput_iso", 0.85, 1.15),
        ("t3.decode_tput", 0.7, 1.4),
        ("derived.t4_llc_1way", 0.9, 1.1),
        ("fig8.blink_int", 0.9, 1.1),
    ],
)
def test_quiet_figures_are_near(
    figure: str, low: float, high: float, committed: dict[str, Any]
) -> None:
    ratio = next(each["ratio"] for each in committed["entries"] if each["id"] == figure)
    assert all(low <= each <= high for each in (ratio if isinstance(ratio, list) else [ratio]))


def test_what_is_written_appears_beside_what_was_there(
    tmp_path: Path, committed: dict[str, Any]
) -> None:
    (tmp_path / "mine.md").write_text("kept")
    results = Results(_everything())
    write(committed, results, tmp_path)
    assert (tmp_path / PAGE).read_bytes() == (DOCS / PAGE).read_bytes()
    assert (tmp_path / DATA).read_bytes() == (DOCS / DATA).read_bytes()
    assert {each.name for each in tmp_path.iterdir()} == {"mine.md", PAGE, DATA, "img"}
    names = ["figure1.png", "figureC1.png"]
    draw_figures(tmp_path, results, names)
    for name in names:
        assert (tmp_path / name).read_bytes() == (tmp_path / FOLDER / name).read_bytes()


def _everything() -> Runs:
    runs = Counting()
    runs.execute(list(grid()))
    ask({"figure 3": lambda runs: PREDICTIONS["fig3.makespan"](Results(runs))}, runs)
    return runs


# --- the command -----------------------------------------------------------------------------


def test_an_unknown_figure_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r'did you mean "t1\.tput_iso"'):
        reproduce("t1.tput_isolated")


def test_the_command_prints_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--only", "launch.ff", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert {"id", "predicted", "stated", "ratio", "verdict"} <= entries[0].keys()
    assert [each["id"] for each in entries] == [
        "launch.ff",
        "launch.ff_vs_host",
        "launch.ff_vs_tail",
    ]


def test_another_seed_draws_other_requests(committed: dict[str, Any]) -> None:
    (found,) = reproduce("t2.tput_iso", seed=2, workers=1)[0]["entries"]
    kept = next(each for each in committed["entries"] if each["id"] == found["id"])
    assert found["predicted"] != kept["predicted"]
    assert found["predicted"] == pytest.approx(kept["predicted"], rel=0.1)


def test_what_is_off_says_what_is_suspected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--only", "t1.tput_int"]) == 0
    assert "t1.tput_int: suspected: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "table 6"], "unknown figure of the paper"),
        (["--only", "t6", "--out", "x"], "leave --only or --out out"),
        (["--out", "/proc/none"], "cannot write to /proc/none"),
        (["--jobs", "0"], "at least 1"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and said in captured.err
