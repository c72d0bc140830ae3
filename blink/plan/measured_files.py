"""What files of measured runs may hold: their shape, and one clear line for what breaks it.

Unknown keys are let pass, for these files are other people's; null is the same as absent.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from blink.model.workload.traces import whole_tokens

STAMP_S_MAX: Final = 4e9  # of the year 2096: two stamps differ by less than int64 nanoseconds hold


class Part(BaseModel):
    """Keys that are known are checked, others are let pass."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


def _tokens(written: object) -> int:
    try:
        return whole_tokens(written, "a")
    except ValueError as error:
        message = str(error).removeprefix("a ")
        raise PydanticCustomError("tokens", "{message}", {"message": message}) from None


Tokens = Annotated[int, BeforeValidator(_tokens)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Stamp = Annotated[float, Field(ge=0, le=STAMP_S_MAX)]
Figure = Annotated[float, Field(ge=0, le=1e15)]


class Spread(Part):
    """A latency in ms; a part that was not measured is None."""

    mean: Figure | None = None
    p50: Figure | None = None
    p95: Figure | None = None
    p99: Figure | None = None


class SummaryRun(Part):
    """One of the runs of a summary."""

    model: str
    requests_file: str
    condition: str | None = None
    rate: Annotated[float, Field(gt=0)] | None = None
    ttft_ms: Spread | None = None
    tpot_ms: Spread | None = None
    itl_ms: Spread | None = None
    out_tok_s: Figure | None = None
    req_s: Figure | None = None


class Summary(Part):
    """A summary: what was measured, in words, and its runs."""

    what: str = ""
    date: str | None = None
    load: str | None = None
    notes: Any = None
    gpu: str | None = None
    conditions: dict[str, str] | None = None
    runs: Annotated[tuple[SummaryRun, ...], Field(min_length=1)]

    @property
    def said(self) -> str:
        """Everything said about the measurement, in which settings are looked for."""
        return " ".join(str(part or "") for part in (self.what, self.load, self.notes, self.gpu))


_HARMLESS: Final = frozenset(
    {"model", "tokenizer", "seed", "max_model_len", "trust_remote_code", "served_model_name"}
    | {"disable_log_stats", "disable_log_requests", "load_format", "enable_chunked_prefill"}
)
Utilization = Annotated[float, Field(gt=0, le=1)]
BlockSize = Annotated[int, Field(ge=1, le=65_536)]


class EngineSettings(Part):
    """vLLM's own names."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)

    tensor_parallel_size: Count | None = None
    pipeline_parallel_size: Count | None = None
    data_parallel_size: Count | None = None
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] | None = None
    max_num_batched_tokens: Count | None = None
    kv_cache_dtype: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    gpu_memory_utilization: Utilization | None = None
    block_size: BlockSize | None = None
    enable_prefix_caching: bool | None = None

    @property
    def not_modelled(self) -> list[str]:
        """Settings that are on and that the twin knows nothing of."""
        extra = self.model_extra or {}
        return sorted(key for key, value in extra.items() if value and key not in _HARMLESS)


class KvCache(Part):
    """The engine's KV cache as it came out."""

    num_gpu_blocks: Count | None = None
    block_size: BlockSize | None = None
    gpu_memory_utilization: Utilization | None = None
    enable_prefix_caching: bool | None = None


class Board(Part):
    """The GPU, as its driver calls it."""

    device_name: str | None = None


class Meta(Part):
    """A ``.meta.json``."""

    model: str | None = None
    engine_kwargs: EngineSettings | None = None
    kv_cache: KvCache | None = None
    hardware: Board | None = None
    started_at: str | None = None


class RequestRow(Part):
    """One request of a JSONL file: tokens, and time stamps in s.

    ``arrival_time`` is of one clock, the others of another.
    """

    input_toks: Tokens
    output_toks: Tokens
    arrival_time: Stamp
    queued_ts: Stamp
    first_token_ts: Stamp
    last_token_ts: Stamp

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.queued_ts <= self.first_token_ts <= self.last_token_ts:
            message = "queued_ts, first_token_ts and last_token_ts are not in this order"
            raise PydanticCustomError("order", "{message}", {"message": message})
        return self
