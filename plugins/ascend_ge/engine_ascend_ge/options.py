"""The user's settings for this backend: section [ascend_context], over it [ascend_ge_context].

The names are MindSpore Lite's where it has them; README.md lists them with their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from engine.options import parsed
from engine.types import CompileOptions, Option

# The API's precision_mode -> ATC's flag. Without a wish the model keeps its own types: ATC's own
# default, and MindSpore Lite's, is to compute in float16 and not to say so.
_KEEP = ("precision_mode_v2", "origin")
_PRECISIONS = {
    "": _KEEP,
    "enforce_fp32": ("precision_mode", "force_fp32"),
    "preferred_fp32": ("precision_mode", "allow_fp32_to_fp16"),
    "enforce_fp16": ("precision_mode", "force_fp16"),
    "preferred_fp16": ("precision_mode_v2", "mixed_float16"),
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

# Options that go to ATC as they are, and its names for them.
_PASSED: Mapping[str, str] = {
    "input_format": "input_format",
    "output_type": "output_type",
    "op_select_impl_mode": "op_select_implmode",
    "fusion_switch_config_file_path": "fusion_switch_file",
    "insert_op_config_file_path": "insert_op_conf",
    "mixprecision_list_path": "modify_mixlist",
    "deterministic": "deterministic",
    "op_compiler_cache_mode": "op_compiler_cache_mode",
    "op_compiler_cache_dir": "op_compiler_cache_dir",
}

# MindSpore Lite's names for things that change what happens, and that this version does not do:
# refused, because a run without them would not be what was asked for.
_NOT_YET = (
    "profiling_config_file", "dump_config_file", "dump_model_name",
    "parameter_as_refdata", "max_weight_batch", "custom_fusion_pattern", "op_attrs", "aoe_mode",
    "stream_label_file", "bundle_model",
)  # fmt: skip

DEFAULT_TIMEOUT_S = 3600.0
SHORTEST_TIMEOUT_S = 1.0
DEFAULT_CONCURRENCY = 4

OPTIONS: Mapping[str, Option] = {
    "precision_mode": Option(
        text="as context.ascend.precision_mode, or ATC's own name for a mode",
        choices=tuple(name for name in _PRECISIONS if name),
    ),
    "output_type": Option(text="element type of all outputs: FP32, FP16, ..."),
    "op_select_impl_mode": Option(
        text="exact or fast kernels, for the operators in ATC's lists or for all",
        choices=(
            "high_precision",
            "high_performance",
            "high_precision_for_all",
            "high_performance_for_all",
        ),
    ),
    "deterministic": Option(text="equal inputs give equal bits", type=bool, choices=("0", "1")),
    "input_format": Option(
        text="ATC's input_format", choices=("NCHW", "NHWC", "ND", "NCDHW"), default="ND"
    ),
    "fusion_switch_config_file_path": Option(text="a file for ATC's fusion_switch_file"),
    "insert_op_config_file_path": Option(text="a file for ATC's insert_op_conf (AIPP)"),
    "mixprecision_list_path": Option(text="a file for ATC's modify_mixlist"),
    "op_compiler_cache_mode": Option(
        text="ATC's cache of compiled kernels", choices=("enable", "disable", "force")
    ),
    "op_compiler_cache_dir": Option(text="the folder of that cache"),
    "soc_version": Option(text="for example Ascend910B3; default: the device's own"),
    "atc": Option(text="the command that starts ATC; default: atc, else python -m ge.pyatc"),
    "compile_timeout_s": Option(
        text="seconds after which ATC is ended",
        type=float,
        lowest=SHORTEST_TIMEOUT_S,
        default=f"{DEFAULT_TIMEOUT_S:g}",
    ),
    "concurrency": Option(
        text="predicts of one model at once, each with activations of its own; 0: any number",
        type=int,
        lowest=0,
        default=str(DEFAULT_CONCURRENCY),
    ),
    **dict.fromkeys(
        _NOT_YET, Option(text="MindSpore Lite's; refused: this version does not do it")
    ),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one compile.

    soc_version: "" for the device's own. flags: ATC's, by name. timeout_s: how long ATC may take.
    concurrency: see Executable.
    """

    soc_version: str = ""
    atc: str = ""
    concurrency: int = DEFAULT_CONCURRENCY
    timeout_s: float = DEFAULT_TIMEOUT_S
    flags: Mapping[str, str] = field(default_factory=dict)


PROVIDERS = ("ge", "ge-v1")
"""MindSpore Lite's two ways to use GE, which are one here."""


def read(options: CompileOptions) -> Settings:
    """Check and read what the user set; ValueError naming the option that does not fit."""
    given = options.options
    for key in given:
        if key in _NOT_YET:
            raise ValueError(
                f"option {key!r} is not supported by backend 'ascend_ge' yet; remove it"
            )
    values = parsed(given, {name: OPTIONS[name] for name in OPTIONS if name not in _NOT_YET})
    from engine_ascend_ge import sections  # not while the plugin is imported

    raw = sections.flags_of(options.config)
    if options.provider not in ("", *PROVIDERS):
        raise ValueError(
            f"provider {options.provider!r}: backend 'ascend_ge' has {_listed(PROVIDERS)} and ''"
        )
    precision = values["precision_mode"] or options.precision
    if precision not in _PRECISIONS:
        raise ValueError(
            f"option 'precision_mode': expected one of {_listed(filter(None, _PRECISIONS))}, "
            f"got {precision!r}"
        )
    flag, value = _PRECISIONS[precision]
    chosen = {name for name in ("precision_mode", "precision_mode_v2") if name in raw}
    if chosen and precision and raw.get(flag) != value:
        raise ValueError(
            f"option 'precision_mode' is {precision!r}, and a section of raw options sets "
            f"{chosen.pop()} otherwise; give one of them"
        )
    flags = {**({} if chosen else {flag: value}), "input_format": "ND", **raw}
    for key, name in _PASSED.items():
        if given.get(key, "").strip():
            flags[name] = str(int(values[key])) if OPTIONS[key].type is bool else values[key]
    return Settings(
        soc_version=values["soc_version"],
        atc=values["atc"],
        concurrency=values["concurrency"],
        timeout_s=values["compile_timeout_s"],
        flags=flags,
    )


def _listed(values: Iterable[str]) -> str:
    return ", ".join(map(repr, values))
