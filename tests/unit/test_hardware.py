"""Hardware SKUs: every name the issue asks for, complete, with the origin of every number."""

from __future__ import annotations

from dataclasses import fields

import pytest

from blink.model import hardware
from blink.model.errors import UnknownName


@pytest.mark.parametrize(
    "name",
    [
        *("H100", "H100 96GB", "H200", "A100", "L40S", "B200"),
        *("RTX 4090", "RTX4090", "NVIDIA GeForce RTX 4090", "rtx pro 6000 blackwell"),
    ],
)
def test_gpus_are_found_by_the_names_people_use(name: str) -> None:
    sku = hardware.gpu(name)
    assert sku.memory_bytes > 20e9
    assert sku.sustained_flops_16bit <= 1.15 * sku.dense_flops_16bit


@pytest.mark.parametrize("kind", ["gpu", "host", "dpu", "link"])
def test_every_number_says_where_it_comes_from(kind: str) -> None:
    for name in hardware.names(kind):
        sku = getattr(hardware, kind)(name)
        for each in fields(sku):
            if each.name in ("name", "provenance"):
                continue
            constant = sku.provenance[each.name]
            assert constant.value == getattr(sku, each.name)
            assert constant.unit and len(constant.source) > 6, (name, each.name)


def test_whole_numbers_are_ints() -> None:
    sku = hardware.link("paper")
    assert isinstance(sku.write_latency_ns, int)
    assert isinstance(hardware.gpu("H200").scan_ns, int)


def test_an_unknown_name_says_the_nearest() -> None:
    with pytest.raises(UnknownName, match="rtx-4090"):
        hardware.gpu("rtx-4080")


def test_the_common_table_is_not_a_gpu() -> None:
    assert "_common" not in hardware.names("gpu")
    with pytest.raises(UnknownName):
        hardware.gpu("_common")
