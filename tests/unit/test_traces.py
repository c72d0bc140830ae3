"""Trace files as published: recognised, read exactly, and refused with file and line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.model.errors import BadInput, TraceError
from blink.model.random import stream_of
from blink.model.scenario.traffic import TraceWorkload
from blink.model.workload import Workload, build_workload, length_tables, read_trace
from blink.model.workload.extract import main as extract
from blink.model.workload.timestamps import date_ns
from tests.shared_files import shared_file

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:59.6805900,374,44
2023-11-17 00:00:00.0000001,396,109
2023-11-17 00:00:01.6805900,879,55"""

MOONCAKE = """\
{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}
{"timestamp": 3001, "input_length": 7322, "output_length": 490, "hash_ids": [0]}
"""

MEASURED = """\
{"request_id": "bench-0", "input_toks": 23, "output_toks": 5, "arrival_time": 1787267980.5}

{"request_id": "bench-1", "input_toks": 10, "output_toks": 7, "arrival_time": 1787267980.25}
"""

GUIDELLM = '{"prompt": "x", "prompt_tokens_count": 12, "output_tokens_count": 3}\n'
VLLM = '{"prompt_len": 12, "output_len": 3, "extra": null}\n'
PLAIN = "arrival_s,input_tokens,output_tokens\n0.386056,1134,159\n0.422710,609,347\n"
VIDUR = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.8\n"
BURST_GPT = "Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,472,18\n45,GPT-4,1087,230\n"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "trace"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(
    ("text", "form", "arrival_ns", "inputs", "outputs"),
    [
        (AZURE, "Azure CSV", [0, 319_410_100, 2_000_000_000], [374, 396, 879], [44, 109, 55]),
        (
            AZURE.replace("\n", "\r\n"),
            "Azure CSV",
            [0, 319_410_100, 2_000_000_000],
            [374, 396, 879],
            [44, 109, 55],
        ),
        (
            "\ufeff" + AZURE,
            "Azure CSV",
            [0, 319_410_100, 2_000_000_000],
            [374, 396, 879],
            [44, 109, 55],
        ),
        (MOONCAKE, "Mooncake JSONL", [0, 3_001_000_000], [6758, 7322], [500, 490]),
        (MEASURED, "JSONL", [0, 250_000_000], [10, 23], [7, 5]),
        (GUIDELLM, "JSONL", None, [12], [3]),
        (VLLM, "JSONL", None, [12], [3]),
        (PLAIN, "CSV", [386_056_000, 422_710_000], [1134, 609], [159, 347]),
        (VIDUR, "CSV", None, [3772], [54]),
        (BURST_GPT, "CSV", [5_000_000_000, 45_000_000_000], [472, 1087], [18, 230]),
        ('arrival_s,"input_tokens",output_tokens\n"1",2,3\n\n', "CSV", [10**9], [2], [3]),
        ('note,input_tokens,output_tokens\n"two\nlines",2,3\n', "CSV", None, [2], [3]),
        ('{"prompt": "a\u2028b", "input_len": 2, "output_len": 3}\n', "JSONL", None, [2], [3]),
    ],
)
def test_formats(
    write: Any,
    text: str,
    form: str,
    arrival_ns: list[int] | None,
    inputs: list[int],
    outputs: list[int],
) -> None:
    trace = read_trace(write(text))
    assert trace.form == form
    assert (None if trace.arrival_ns is None else trace.arrival_ns.tolist()) == arrival_ns
    assert trace.input_tokens.tolist() == inputs
    assert trace.output_tokens.tolist() == outputs


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (AZURE.replace("396", "x"), 3, 'prompt length "x" is not a whole number of tokens'),
        (AZURE.replace("396", ""), 3, 'prompt length "" is not a whole number of tokens'),
        (AZURE.replace("396", "0"), 3, "prompt length 0 is not within 1 to 16,777,215 tokens"),
        (AZURE.replace("109", "-5"), 3, "output length -5 is not within 1 to 16,777,215 tokens"),
        (AZURE.replace(",109", ""), 3, "2 fields, the header has 3"),
        (
            AZURE.replace("2023-11-17 00:00:00.0000001", "2023-13-17 00:00:00"),
            3,
            '"2023-13-17" is not a date',
        ),
        (
            AZURE.replace("2023-11-17 00:00:00.0000001", "yesterday"),
            3,
            '"yesterday" is not a time such as "2023-11-16 18:15:46.680590"',
        ),
        (
            AZURE.replace("00:00:00.0000001", "24:00:00"),
            3,
            '"2023-11-17 24:00:00" has no such time of day',
        ),
        (PLAIN.replace("0.422710", "soon"), 3, 'arrival "soon" is not a time'),
        (PLAIN.replace("0.422710", "-1"), 3, 'arrival "-1" is not a time'),
        (PLAIN.replace("0.422710", "nan"), 3, 'arrival "nan" is not a time'),
        (
            PLAIN.replace("input_tokens", "input_token"),
            1,
            'no column of prompt lengths; did you mean "input_tokens"?',
        ),
        (
            MOONCAKE.replace("7322", "7322.5"),
            2,
            'prompt length "7322.5" is not a whole number of tokens',
        ),
        (
            MOONCAKE.replace("7322", "true"),
            2,
            'prompt length "True" is not a whole number of tokens',
        ),
        (
            MOONCAKE.replace("7322", "null"),
            2,
            'prompt length "None" is not a whole number of tokens',
        ),
        (
            MOONCAKE.replace('"output_length": 490, ', ""),
            2,
            'no "output_length", which the first line has',
        ),
        (
            MOONCAKE + "{",
            3,
            "not JSON: Expecting property name enclosed in double quotes, column 2",
        ),
        (MOONCAKE + "[1]", 3, "not a JSON object"),
        ("", None, "is empty"),
        ("arrival_s,input_tokens,output_tokens\n", None, "has no requests"),
    ],
)
def test_a_bad_line_is_named(write: Any, text: str, line: int | None, message: str) -> None:
    path = write(text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert caught.value.line == line
    assert str(caught.value) == f"{path}{'' if line is None else f':{line}'}: {message}"
    assert caught.value.exit_code == 2


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no such file"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(TraceError, match="not UTF-8 text: byte 0"):
        read_trace(tmp_path / "binary")


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("2023-11-16T18:15:46Z", "2023-11-16 18:15:46"),
        ("2023-11-16 18:15:46+02:00", "2023-11-16 16:15:46"),
        ("2023-11-16 18:15:46.5-0130", "2023-11-16 19:45:46.500"),
    ],
)
def test_dates_with_zones(written: str, same: str) -> None:
    assert date_ns(written) == date_ns(same)


def test_dates_are_exact() -> None:
    assert date_ns("1970-01-02 00:00:01.000000001") == 86_401_000_000_001


def build(path: Path, **keys: Any) -> Workload:
    return build_workload(TraceWorkload(trace=str(path), **keys), stream_of(1))


TEN = "arrival_s,input_tokens,output_tokens\n" + "".join(
    f"{i},{i + 1},{10 - i}\n" for i in range(10)
)


@pytest.mark.parametrize(
    ("keys", "arrival_s"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"requests": 2}, [0, 1]),
        ({"start_s": 7.5}, [0.5, 1.5]),
        ({"start_s": 2.0, "duration_s": 3.0}, [0, 1, 2]),
        ({"start_s": 2.0, "duration_s": 3.0, "requests": 2}, [0, 1]),
        ({"time_scale": 0.5, "requests": 3}, [0, 0.5, 1]),
        ({"rate": 4.0, "requests": 3}, [0, 0.25, 0.5]),
        ({"rate": 4.0, "requests": 1}, [0]),
        ({"input_tokens_max": 3}, [0, 1, 2]),
        ({"output_tokens_max": 2}, [8, 9]),
        ({"arrivals": "constant", "rate": 2.0, "requests": 3}, [0, 0.5, 1]),
    ],
)
def test_slices_and_scales(write: Any, keys: dict[str, Any], arrival_s: list[float]) -> None:
    workload = build(write(TEN), **keys)
    assert (workload.arrival_ns / 1e9).tolist() == arrival_s


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"start_s": 9.5}, "none of its 10 requests is within start_s, duration_s and the length"),
        ({"input_tokens_max": 1, "output_tokens_max": 1}, "none of its 10 requests"),
    ],
)
def test_an_empty_slice(write: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        build(write(TEN), **keys)


def test_arrivals_at_once_have_no_gaps_to_scale(write: Any) -> None:
    path = write("arrival_s,input_tokens,output_tokens\n1,1,1\n1,1,1\n")
    with pytest.raises(BadInput, match="arrive at once"):
        build(path, rate=3.0)


def test_a_trace_without_arrivals_needs_some(write: Any) -> None:
    path = write(VIDUR)
    with pytest.raises(TraceError, match="has lengths but no arrivals"):
        build(path)
    assert build(path, arrivals="poisson", rate=3.0).arrival_ns[0] > 0
    assert build(path, arrivals="bursts", rate=3.0, cv=2.0).input_tokens.tolist() == [3772]


@pytest.mark.parametrize(
    ("name", "form", "requests", "span_s"),
    [
        ("azure2023_conv.csv", "Azure CSV", 19_366, 3501.721937),
        ("azure2023_code.csv", "Azure CSV", 8_819, 3435.948056),
        ("mooncake_conversation_trace.jsonl", "Mooncake JSONL", 12_031, 3536.999),
        ("llmservingsim_sharegpt300_lengths.csv", "CSV", 300, 29.183763),
    ],
)
def test_published_traces(name: str, form: str, requests: int, span_s: float) -> None:
    trace = read_trace(shared_file(f"traces/{name}"))
    assert (trace.form, len(trace)) == (form, requests)
    assert trace.arrival_ns is not None
    assert trace.arrival_ns[-1] / 1e9 == pytest.approx(span_s, abs=1e-6)
    assert (np.diff(trace.arrival_ns) >= 0).all()


def test_a_published_trace_without_arrivals() -> None:
    name = "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv"
    trace = read_trace(shared_file(f"traces/{name}"))
    assert (len(trace), trace.arrival_ns) == (28_257, None)


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("azure2023_conv", "azure2023_conv.csv"),
        ("azure2023_code", "azure2023_code.csv"),
        ("sharegpt300", "llmservingsim_sharegpt300_lengths.csv"),
        ("mooncake_conversation", "mooncake_conversation_trace.jsonl"),
    ],
)
def test_tables_are_what_their_traces_give(
    table: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert extract([table, str(shared_file(f"traces/{name}"))]) == 0
    extracted = tomllib.loads(capsys.readouterr().out)[table]
    path = Path(__file__).parents[2] / "blink" / "model" / "data" / "lengths.toml"
    shipped = tomllib.loads(path.read_text(encoding="utf-8"))[table]
    by_hand = {"source", "licence", "extracted"}
    assert {key: part for key, part in shipped.items() if key not in by_hand} == extracted
    assert set(length_tables()) >= {table}
