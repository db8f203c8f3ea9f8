"""Schema of a configuration: its sections and keys; finds unused settings.

The table is MindSpore Lite's. A backend's own settings are what its `BackendInfo.options` says;
they go in section [<backend>_context].
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from engine.config.text import did_you_mean
from engine.options import CONSUMED, RESERVED, is_declared, nearest

_ANY = ("*",)

KNOWN: Mapping[str, tuple[str, ...]] = {
    "ascend_context": (
        "provider", "rank_table_file", "profiling_config_file", "dump_config_file",
        "dump_model_name", "ge_variable_memory_max_size", "ge_graph_memory_max_size",
        "model_cache_dir", "model_cache_mode", "mixprecision_list_path", "parameter_as_refdata",
        "variable_weights_file", "variable_weights_list", "max_weight_batch",
        "shareable_weight_pid_list", "shareable_weight_mem_handle", "enable_custom_op",
        "plugin_custom_ops", "custom_fusion_pattern", "op_attrs", "aoe_mode", "stream_label_file",
        "bundle_model", "input_format", "input_shape", "dynamic_dims", "precision_mode",
        "op_select_impl_mode", "output_type", "fusion_switch_config_file_path",
        "insert_op_config_file_path",
    ),
    "gpu_context": (
        "input_shape", "dynamic_dims", "opt_dims", "precision_mode", "serialize_path", "dump_ops",
        "dump_dir",
    ),
    "acl_init_options": _ANY,
    "acl_build_options": _ANY,
    "acl_option_cfg_param": _ANY,
    "ge_global_options": _ANY,
    "ge_session_options": _ANY,
    "ge_graph_options": _ANY,
    "aoe_global_options": _ANY,
    "aoe_tuning_options": _ANY,
    "execution_plan": _ANY,
    "common_context": (
        "isolate", "extensions", "model_cache_dir", "compile_cache", "shareable_weight_pid_list",
        "shareable_weight_mem_handle", "variable_weights_file",
        "variable_weights_list", "variable_weights_mode", "variable_weights_update",
        "auto_budget_s", "auto_background", "max_error",
    ),
    "tuned": _ANY,
    "ray_context": ("num_cpus", "num_gpus", "resources", "start_timeout_s"),
    "ms_cache": ("cache_model_path", "vocab_size", "device_cache_size", "serialize_path"),
    "transformer_context": ("encoder_input", "decoder_input", "ffn_fp16", "optimize_transformer"),
    "model_file": ("mindir_path",),
    "weight": ("weight_path",),
    "shared_thread_pool": (
        "enable_shared_thread_pool", "thread_num_limit_per_worker",
        "thread_num_remaining_per_worker",
    ),
    # set by MindSpore Lite itself
    "inner_common": _ANY,
    "lite_inner_group": _ANY,
    "inner_model_parallel_runner": _ANY,
    "converter_params": _ANY,
    # read by its converter, from the same file
    "common_quant_param": _ANY,
    "mixed_bit_weight_quant_param": _ANY,
    "weight_quant_param": _ANY,
    "full_quant_param": _ANY,
    "transform_quant_param": _ANY,
    "dynamic_quant_param": _ANY,
    "data_preprocess_param": _ANY,
    "registry": _ANY,
    "SplitGraph": ("split_node_name",),
    "graph_kernel_param": _ANY,
    "micro_param": _ANY,
    "cpu_option_cfg_param": _ANY,
    "custom_opp_path": _ANY,
    "om_converter": _ANY,
}  # fmt: skip
"""MindSpore Lite's sections and the keys that it reads there; "*" is any key."""

_OF_BACKENDS = ("ascend_context", "gpu_context")


class Unused(NamedTuple):
    """A line on a setting that nothing reads. is_unknown: nothing ever would; it is a mistake."""

    text: str
    is_unknown: bool


def unused_settings(
    config: Mapping[str, Mapping[str, str]],
    backend: str,
    read: Sequence[str],
    options: Collection[str],
    backends: Callable[[], Iterable[str]],
) -> Iterator[Unused]:
    """Return notes on a configuration that a model is built with.

    backend: the one that compiles the model; it reads the sections `read`, and in them `options`,
        as its manifest declares them ({}: it does not say).
    backends: gives the names of those that have a section too; asked only where it matters.
    """
    strange = set(config) - {*read, *KNOWN}
    others = [f"{name}_context" for name in backends()] if strange else []
    sections = dict.fromkeys((*read, *KNOWN, *others))
    for section, keys in config.items():
        if section.endswith("_extension"):  # engine.runtime.extensions reads it, or refuses it
            continue
        if section not in sections:
            full = f"{section}_context"
            near = full if full in sections else nearest(section, sections)
            hint = f"did you mean [{near}]?" if near else f"{backend!r} reads {_listed(read)}"
            yield Unused(f"configuration section [{section}] is unknown and not read; {hint}", True)
            continue
        known = KNOWN.get(section, ())
        if section in read:
            for key in keys:
                if key in RESERVED:
                    yield Unused(f"configuration key [{section}] {key} has no effect yet", False)
            if options:
                yield from _in_use(section, keys, known, backend, options)
        elif section in _OF_BACKENDS or section not in KNOWN:
            # Of a backend that is not in use only MindSpore Lite's keys are known here: what
            # looks like one of those is a mistake, what does not may be the backend's own.
            for key in keys:
                near = nearest(key, known, 0.8)
                if near and not is_declared(key, (*known, *CONSUMED)):
                    yield _unknown(section, key, f"did you mean {near!r}?")
        else:
            for key in keys:
                if not is_declared(key, known):
                    hint = did_you_mean(key, known) or f"known: {', '.join(known)}"
                    yield _unknown(section, key, hint)


def _in_use(
    section: str, keys: Iterable[str], known: Sequence[str], backend: str, options: Collection[str]
) -> Iterator[Unused]:
    for key in keys:
        if is_declared(key, (*options, *CONSUMED)):
            continue
        if key in known:
            text = f"configuration key [{section}] {key} has no effect with backend {backend!r}"
            yield Unused(text, False)
            continue
        hint = did_you_mean(key, (*options, *known, *CONSUMED)) or f"known: {', '.join(options)}"
        yield _unknown(section, key, hint)


def _listed(sections: Sequence[str]) -> str:
    return ", ".join(f"[{name}]" for name in sections)


def _unknown(section: str, key: str, hint: str) -> Unused:
    return Unused(f"configuration key [{section}] {key} is unknown and not read; {hint}", True)
