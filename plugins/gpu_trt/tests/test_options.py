"""What the configuration's keys mean, and which mistakes in it are named."""

from __future__ import annotations

from typing import Any

import pytest

from engine.types import CompileOptions, Device
from engine_gpu_trt.options import Settings, read_settings


def read(precision: str = "", provider: str = "", **options: str) -> Settings:
    return read_settings(
        CompileOptions(
            device=Device("gpu"), precision=precision, provider=provider, options=options
        )
    )


def test_without_settings_everything_is_the_default() -> None:
    assert read() == Settings()


def test_input_shape_fixes_dims_by_name() -> None:
    found = read(input_shape="x:[1,3,96,96];ns:ids: [-1, 128] ;s:[]")
    assert found.shapes == {"x": (1, 3, 96, 96), "ns:ids": (-1, 128), "s": ()}
    assert found.ranges == ()


def test_dynamic_dims_belong_to_the_open_dims_in_order() -> None:
    found = read(
        input_shape="a:[-1,3,-1];b:[2,-1]",
        dynamic_dims="[1~8,16~512];[100~200]",
        opt_dims="[4,128];[150]",
    )
    assert found.ranges == ({"a": ((1, 4, 8), (16, 128, 512)), "b": ((100, 150, 200),)},)


def test_without_opt_dims_the_highest_is_tuned_for() -> None:
    found = read(input_shape="a:[-1,-1]", dynamic_dims="[1~8,7]")
    assert found.ranges == ({"a": ((1, 8, 8), (7, 7, 7))},)


def test_several_lists_are_several_profiles() -> None:
    found = read(
        input_shape="a:[-1];fixed:[3];b:[-1]",
        dynamic_dims="[1~8],[9~64];;[2],[3~4]",
        opt_dims="[8],[32];;[2],[3]",
    )
    assert found.ranges == (
        {"a": ((1, 8, 8),), "fixed": (), "b": ((2, 2, 2),)},
        {"a": ((9, 32, 64),), "fixed": (), "b": ((3, 3, 4),)},
    )


def test_upstreams_own_example_is_read() -> None:
    found = read(
        input_shape="x1:[1,1,28,-1];x2:[-1,-1]",
        dynamic_dims="[100~200];[200~300,20~30]",
        opt_dims="[150];[250,25]",
    )
    assert found.ranges == ({"x1": ((100, 150, 200),), "x2": ((200, 250, 300), (20, 25, 30))},)


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
    assert (found.batch_range, found.dim_range) == ((1, 4, 16), (8, 64, 64))
    assert (read(tf32="True").tf32, read(tf32="0").tf32) == (True, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workspace_byte": "1"}, "'workspace_byte'; did you mean 'workspace_bytes'"),
        ({"workspace_bytes": "1 TB"}, "workspace_bytes must be a size"),
        ({"workspace_bytes": "-1"}, "workspace_bytes must be a size"),
        ({"tf32": "maybe"}, "tf32 must be 'on' or 'off', but got 'maybe'"),
        ({"optimization_level": "6"}, r"optimization_level must be in 0\.\.5, but got '6'"),
        ({"precision_mode": "int8"}, r"gpu_precision_mode must be in \[enforce_fp32, preferred"),
        ({"batch_range": "1"}, "batch_range must be 'lowest~usual~highest'"),
        ({"batch_range": "8~4~1"}, "batch_range must rise"),
        ({"dim_range": "a~2"}, "dim_range: expected a whole number"),
        ({"input_shape": "x"}, "input_shape must be 'name:"),
        ({"input_shape": "x:[1,b]"}, "input_shape must be 'name:"),
        ({"input_shape": "x:[-2]"}, "input_shape: expected a whole number of at least -1"),
        ({"input_shape": "x:[99999999999]"}, "input_shape: expected a whole number"),
        ({"input_shape": "x:[4294967296]"}, "is more than 2147483647"),
        ({"input_shape": "x:[1];x:[2]"}, "names 'x' twice"),
        ({"dynamic_dims": "[1~2]"}, "input_shape must be given"),
        ({"input_shape": "x:[-1]", "opt_dims": "[1]"}, "dynamic_dims must be given"),
        ({"input_shape": "x:[-1]", "dynamic_dims": "[1];[2]"}, "2 inputs, but input_shape has 1"),
        ({"input_shape": "x:[-1]", "dynamic_dims": "1~2"}, "dynamic_dims must be"),
        ({"input_shape": "x:[-1]", "dynamic_dims": "[1,2]"}, "gives 2 dims for input 'x'"),
        ({"input_shape": "x:[-1]", "dynamic_dims": "[1~2~3]"}, "'lowest~highest' or a number"),
        ({"input_shape": "x:[-1]", "dynamic_dims": "[3~1]"}, "the ends are swapped"),
        ({"input_shape": "x:[-1]", "dynamic_dims": "[1~3]", "opt_dims": "[4]"}, "4 is outside"),
        ({"input_shape": "x:[-1]", "dynamic_dims": "[1],[2]", "opt_dims": "[1]"}, "1 entries"),
        (
            {"input_shape": "x:[-1];y:[-1]", "dynamic_dims": "[1],[2];[1]"},
            "every input as many entries",
        ),
        ({"input_shape": "x:[-1];y:[-1]", "dynamic_dims": "[1];"}, "gives nothing for input 'y'"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**options)


def test_an_unknown_provider_is_named() -> None:
    with pytest.raises(ValueError, match="but got 'tensorrt_x'"):
        read(provider="tensorrt_x")
