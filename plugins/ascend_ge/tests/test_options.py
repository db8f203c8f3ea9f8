"""Users' settings, in ATC's terms."""

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
        ({"precision_mode": "fp8"}, "option 'precision_mode': expected one of enforce_fp32"),
        ({"deterministic": "yes"}, "option 'deterministic': expected one of 0, 1, got 'yes'"),
        ({"compile_timeout_s": "soon"}, "option 'compile_timeout_s': expected float from 1, got"),
        ({"compile_timeout_s": "0"}, "option 'compile_timeout_s': expected float from 1, got"),
        ({"concurrency": "-1"}, "option 'concurrency': expected int from 0, got '-1'"),
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
    read(options(provider="ge-v1"))
    with pytest.raises(ValueError, match="provider 'tensorrt'"):
        read(options(provider="tensorrt"))


def test_raw_options_of_the_graph_engine_are_atcs_flags(options: Make) -> None:
    config = {
        "acl_build_options": {"ge.exec.modify_mixlist": "a.json", "ge.deterministic": "0"},
        "ge_global_options": {"ge.graphRunMode": "0", "ge.exec.precision_mode": "force_fp16"},
        "ge_session_options": {"ge.opSelectImplmode": "high_precision"},
        "ge_graph_options": {"ge.deterministic": "1"},
    }
    assert read(options(config=config)).flags == {
        "input_format": "ND",
        "modify_mixlist": "a.json",
        "precision_mode": "force_fp16",  # and no precision_mode_v2 beside it
        "op_select_implmode": "high_precision",
        "deterministic": "1",  # a graph's option wins over the others
    }


@pytest.mark.parametrize(
    ("section", "option", "message"),
    [
        ("ge_graph_options", "ge.exec.precision_mod", "did you mean 'ge.exec.precision_mode'"),
        ("acl_build_options", "ge.dynamicDims", r"set dynamic_dims in \[ascend_context\]"),
        ("acl_init_options", "ge.socVersion", r"set soc_version in \[ascend_ge_context\]"),
        ("ge_global_options", "ge.graphRunMode", "expected '0', got '1'"),
        ("ge_session_options", "what", "ATC has no flag for this option; known: ge.exec.prec"),
    ],
)
def test_a_raw_option_that_would_be_ignored_is_refused(
    options: Make, section: str, option: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read(options(config={section: {option: "1"}}))
    assert str(caught.value).startswith(f"[{section}] {option}: ")


def test_two_precisions_are_refused(options: Make) -> None:
    raw = {"ge_global_options": {"ge.exec.precision_mode": "force_fp16"}}
    with pytest.raises(ValueError, match="'precision_mode' is 'enforce_fp32', and a section"):
        read(options(config=raw, precision="enforce_fp32"))
    read(options(config=raw, precision="enforce_fp16"))  # the same thing
    raw["ge_graph_options"] = {"ge.exec.precision_mode_v2": "origin"}
    with pytest.raises(ValueError, match="exclude each other"):
        read(options(config=raw))


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
