"""The user's settings for this backend: section [ascend_context], over it [ascend_ge_context].

The names are MindSpore Lite's where it has them; README.md lists them with their values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from engine.options import refuse_unknown
from engine.types import CompileOptions

# The API's precision_mode -> ATC's flag. Without a wish the model keeps its own types: ATC's own
# default, and MindSpore Lite's, is to compute in float16 and not to say so.
_KEEP = ("precision_mode_v2", "origin")
_PRECISIONS = {
    "": _KEEP,
    "enforce_fp32": ("precision_mode", "force_fp32"),
    "preferred_fp32": ("precision_mode", "allow_fp32_to_fp16"),
    "enforce_fp16": ("precision_mode", "force_fp16"),
    "enforce_origin": ("precision_mode", "must_keep_origin_dtype"),
    "preferred_optimal": ("precision_mode", "allow_mix_precision"),
    # ATC's own names, for the configuration file
    **{
        name: ("precision_mode", name)
        for name in (
            "force_fp16", "force_fp32", "cube_fp16in_fp32out", "allow_mix_precision",
            "allow_fp32_to_fp16", "must_keep_origin_dtype", "allow_mix_precision_fp16",
            "allow_mix_precision_bf16", "allow_fp32_to_bf16",
        )
    },
    **{
        name: ("precision_mode_v2", name)
        for name in ("fp16", "origin", "mixed_float16", "mixed_bfloat16")
    },
}  # fmt: skip

# Options that go to ATC as they are: our name -> ATC's, and the values, () for any.
_PASSED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "input_format": ("input_format", ("NCHW", "NHWC", "ND", "NCDHW")),
    "output_type": ("output_type", ()),
    "op_select_impl_mode": (
        "op_select_implmode",
        (
            "high_precision",
            "high_performance",
            "high_precision_for_all",
            "high_performance_for_all",
        ),
    ),
    "fusion_switch_config_file_path": ("fusion_switch_file", ()),
    "deterministic": ("deterministic", ("0", "1")),
    "op_compiler_cache_mode": ("op_compiler_cache_mode", ("enable", "disable", "force")),
    "op_compiler_cache_dir": ("op_compiler_cache_dir", ()),
}

# MindSpore Lite's names for things that change what happens, and that this version does not do:
# refused, because a run without them would not be what was asked for.
_NOT_YET = (
    "rank_table_file", "profiling_config_file", "dump_config_file", "dump_model_name",
    "mixprecision_list_path", "parameter_as_refdata", "variable_weights_file",
    "variable_weights_list", "max_weight_batch", "shareable_weight_pid_list",
    "shareable_weight_mem_handle", "custom_fusion_pattern", "op_attrs", "aoe_mode",
    "stream_label_file", "bundle_model", "insert_op_config_file_path",
)  # fmt: skip

OPTIONS: Mapping[str, str] = {
    "input_shape": "'x:[-1,64];y:[1~8,3]': a size, -1 (open), or a range",
    "dynamic_dims": "'[1~4],[8],[16]': gears for the sizes that are -1, in input_shape's order",
    "precision_mode": "as context.ascend.precision_mode, or ATC's own name for a mode",
    "output_type": "FP32, FP16, ...: element type of all outputs",
    "op_select_impl_mode": "high_precision, high_performance, or either with _for_all",
    "deterministic": "0, 1",
    "input_format": "ND (default), NCHW, NHWC, NCDHW",
    "fusion_switch_config_file_path": "a file for ATC's fusion_switch_file",
    "op_compiler_cache_mode": "enable, disable, force: ATC's cache of compiled kernels",
    "op_compiler_cache_dir": "the folder of that cache",
    "soc_version": "for example Ascend910B3; default: the device's own",
    "atc": "the command that starts ATC; default: atc, else python -m ge.pyatc",
    "compile_timeout_s": "3600 (default): seconds after which ATC is ended",
    **dict.fromkeys(_NOT_YET, "MindSpore Lite's; refused: this version does not do it"),
}

_SECTIONS_NOT_YET = (
    "acl_init_options",
    "acl_build_options",
    "acl_option_cfg_param",
    "ge_global_options",
    "ge_session_options",
    "ge_graph_options",
)

DEFAULT_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The options, read.

    soc_version: "" for the device's own. flags: ATC's, by name. timeout_s: how long ATC may take.
    """

    soc_version: str = ""
    input_shape: str = ""
    dynamic_dims: str = ""
    atc: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S
    flags: Mapping[str, str] = field(default_factory=dict)


def read(options: CompileOptions) -> Settings:
    """Check and read what the user set; ValueError naming the option that does not fit."""
    given = options.options
    for key in given:
        if key in _NOT_YET:
            raise ValueError(
                f"option {key!r} is not supported by backend 'ascend_ge' yet; remove it"
            )
    refuse_unknown(given, (name for name in OPTIONS if name not in _NOT_YET))
    for section in _SECTIONS_NOT_YET:
        if options.config.get(section):
            raise ValueError(
                f"configuration section [{section}] is not supported by backend 'ascend_ge' yet; "
                "set what it needs in [ascend_ge_context]"
            )
    if options.provider not in ("", "ge"):
        raise ValueError(f"provider {options.provider!r}: backend 'ascend_ge' has 'ge' and ''")
    precision = given.get("precision_mode", "") or options.precision
    if precision not in _PRECISIONS:
        raise ValueError(
            f"option 'precision_mode': expected one of {_listed(filter(None, _PRECISIONS))}, "
            f"got {precision!r}"
        )
    flag, value = _PRECISIONS[precision]
    flags = {flag: value, "input_format": "ND"}
    for key, (name, values) in _PASSED.items():
        text = given.get(key, "")
        if text and values and text not in values:
            raise ValueError(f"option {key!r}: expected one of {_listed(values)}, got {text!r}")
        if text:
            flags[name] = text
    return Settings(
        soc_version=given.get("soc_version", ""),
        input_shape=given.get("input_shape", ""),
        dynamic_dims=given.get("dynamic_dims", ""),
        atc=given.get("atc", ""),
        timeout_s=_seconds(given.get("compile_timeout_s", "")),
        flags=flags,
    )


def _seconds(text: str) -> float:
    if not text:
        return DEFAULT_TIMEOUT_S
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"option 'compile_timeout_s': expected seconds above 0, got {text!r}")
    return value


def _listed(values: Iterable[str]) -> str:
    return ", ".join(map(repr, values))
