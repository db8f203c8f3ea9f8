"""What users set, in ATC's terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.options import CONSUMED
from engine.types import CompileOptions
from engine_ascend_ge import options as module
from engine_ascend_ge.options import read

Make = Callable[..., CompileOptions]


def test_without_a_wish_the_model_keeps_its_own_types(options: Make) -> None:
    assert read(options()).flags["precision_mode_v2"] == "origin"


@pytest.mark.parametrize(
    ("wish", "flag"),
    [
        ("enforce_fp32", "force_fp32"),
        ("preferred_fp32", "allow_fp32_to_fp16"),
        ("enforce_fp16", "force_fp16"),
        ("enforce_origin", "must_keep_origin_dtype"),
        ("preferred_optimal", "allow_mix_precision"),
    ],
)
def test_the_apis_precision_modes_are_acls(options: Make, wish: str, flag: str) -> None:
    flags = read(options(precision=wish)).flags
    assert flags["precision_mode"] == flag
    assert "precision_mode_v2" not in flags, "ATC refuses both at once"


def test_the_configuration_may_name_atcs_own_mode(options: Make) -> None:
    flags = read(options(precision="enforce_fp32", set={"precision_mode": "mixed_bfloat16"})).flags
    assert flags["precision_mode_v2"] == "mixed_bfloat16"
    assert "precision_mode" not in flags


def test_options_of_atc_are_passed_under_its_names(options: Make) -> None:
    given = {
        "op_select_impl_mode": "high_precision",
        "output_type": "FP16",
        "deterministic": "1",
        "fusion_switch_config_file_path": "/x/fusion.cfg",
    }
    flags = read(options(set=given)).flags
    assert flags["op_select_implmode"] == "high_precision"
    assert flags["output_type"] == "FP16"
    assert flags["deterministic"] == "1"
    assert flags["fusion_switch_file"] == "/x/fusion.cfg"
    assert flags["input_format"] == "ND"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"soc_verison": "x"}, r"unknown option 'soc_verison'; did you mean 'soc_version'\?"),
        ({"precision_mode": "fp8"}, "option 'precision_mode': expected one of 'enforce_fp32'"),
        ({"deterministic": "yes"}, "option 'deterministic': expected one of '0', '1', got 'yes'"),
        ({"compile_timeout_s": "soon"}, "option 'compile_timeout_s': expected at least 1 seconds"),
        ({"compile_timeout_s": "0"}, "option 'compile_timeout_s': expected at least 1 seconds"),
        ({"concurrency": "-1"}, "option 'concurrency': expected a whole number from 0, got '-1'"),
        ({"aoe_mode": "1"}, "option 'aoe_mode' is not supported by backend"),
    ],
)
def test_what_does_not_fit_is_a_value_error(
    options: Make, given: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(options(set=given))


def test_another_provider_is_refused(options: Make) -> None:
    read(options(provider="ge"))
    with pytest.raises(ValueError, match="provider 'tensorrt'"):
        read(options(provider="tensorrt"))


def test_a_section_that_would_be_ignored_is_refused(options: Make) -> None:
    with pytest.raises(ValueError, match=r"section \[acl_build_options\] is not supported"):
        read(options(config={"acl_build_options": {"ge.externalWeight": "1"}}))


def test_the_core_may_try_every_value_of_an_option(options: Make) -> None:
    for name, option in module.OPTIONS.items():
        if name not in module._NOT_YET:
            for value in (*option.choices, option.default):
                read(options(set={name: value}))


def test_no_option_is_one_that_the_core_reads() -> None:
    assert set(module.OPTIONS) & set(CONSUMED) == set()


def test_every_option_is_in_the_readme(request: pytest.FixtureRequest) -> None:
    readme = (request.path.parents[1] / "README.md").read_text()
    known: set[Any] = {*module.OPTIONS} - {*module._NOT_YET}
    missing = sorted(name for name in known if f"`{name}`" not in readme)
    assert missing == []
