"""Settings: the meaning of the keys, and the mistakes in them that are named."""

from __future__ import annotations

from typing import Any

import pytest

from engine.options import CONSUMED
from engine.types import CompileOptions, Device, Option
from engine_gpu_trt.options import OPTIONS, Settings, read_settings


def read(precision: str = "", provider: str = "", **options: str) -> Settings:
    return read_settings(
        CompileOptions(
            device=Device("gpu"), precision=precision, provider=provider, options=options
        )
    )


def test_without_settings_everything_is_the_default() -> None:
    assert read() == Settings()


def test_what_the_core_reads_is_not_declared_here() -> None:
    assert not set(OPTIONS) & set(CONSUMED)


def test_every_option_is_typed_and_its_default_is_read_as_the_default() -> None:
    for key, option in OPTIONS.items():
        assert isinstance(option, Option)
        assert read(**{key: option.default}) == Settings()


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("64MiB", 2**26), ("2 GiB", 2**31), ("3KiB", 3072)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert read(workspace_bytes=text).workspace_bytes == size


def test_the_sections_precision_wins_over_the_contexts() -> None:
    assert read("enforce_fp32", precision_mode="preferred_fp16").fp16
    assert not read("preferred_fp16", precision_mode="enforce_fp32").fp16
    assert read("preferred_fp16").fp16


def test_single_settings_are_read() -> None:
    found = read(tf32="on", optimization_level="5", batch_range="1~4~16", dim_range="8~64")
    assert (found.tf32, found.optimization_level) == (True, 5)
    assert read(concurrency="0").concurrency == 0
    assert (found.batch_range, found.dim_range) == ((1, 4, 16), (8, 64, 64))
    assert (read(tf32="True").tf32, read(tf32="0").tf32) == (True, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workspace_byte": "1"}, "'workspace_byte'; did you mean 'workspace_bytes'"),
        ({"workspace_bytes": "1 TB"}, "workspace_bytes must be a size"),
        ({"workspace_bytes": "-1"}, "workspace_bytes must be a size"),
        ({"tf32": "maybe"}, "option 'tf32': expected true or false, got 'maybe'"),
        ({"optimization_level": "6"}, "'optimization_level': expected int from 0 to 5, got '6'"),
        ({"precision_mode": "int8"}, "'precision_mode': expected one of enforce_fp32, preferred"),
        ({"batch_range": "1"}, "batch_range must be 'lowest~usual~highest'"),
        ({"batch_range": "8~4~1"}, "batch_range must rise"),
        ({"dim_range": "a~2"}, "dim_range: expected a whole number"),
        ({"dim_range": "1~4294967296"}, "is more than 2147483647"),
        ({"concurrency": "-1"}, "'concurrency': expected int from 0 to 64, got '-1'"),
        ({"input_shape": "x:[1]"}, "unknown option 'input_shape'"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**options)


def test_an_unknown_provider_is_named() -> None:
    with pytest.raises(ValueError, match="but got 'tensorrt_x'"):
        read(provider="tensorrt_x")
