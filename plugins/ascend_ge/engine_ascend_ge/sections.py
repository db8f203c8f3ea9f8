"""Sections of raw options of the Graph Engine, as ATC's flags.

MindSpore Lite passes [ge_global_options], [ge_session_options], [ge_graph_options] and
[acl_init_options], [acl_build_options] on to GE as they are. Here ATC compiles, which has a flag
for each option that matters to a compile; where sections differ, the later one in SECTIONS wins,
as it does in GE. Settings of a run are not ATC's, and one that has a place of its own is refused
with that.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.options import nearest

SECTIONS = (
    "acl_init_options",
    "acl_build_options",
    "acl_option_cfg_param",
    "ge_global_options",
    "ge_session_options",
    "ge_graph_options",
)

FLAGS: Mapping[str, str] = {
    "ge.exec.precision_mode": "precision_mode",
    "ge.exec.precision_mode_v2": "precision_mode_v2",
    "ge.exec.op_precision_mode": "op_precision_mode",
    "ge.exec.modify_mixlist": "modify_mixlist",
    "ge.exec.allow_hf32": "allow_hf32",
    "ge.exec.disableReuseMemory": "disable_reuse_memory",
    "ge.opSelectImplmode": "op_select_implmode",
    "ge.optypelistForImplmode": "optypelist_for_implmode",
    "ge.outputDatatype": "output_type",
    "ge.deterministic": "deterministic",
    "ge.fusionSwitchFile": "fusion_switch_file",
    "ge.insertOpFile": "insert_op_conf",
    "ge.customizeDtypes": "customize_dtypes",
    "ge.bufferOptimize": "buffer_optimize",
    "ge.engineType": "core_type",
    "ge.aicoreNum": "aicore_num",
    "ge.virtual_type": "virtual_type",
    "ge.enableSmallChannel": "enable_small_channel",
    "ge.enableCompressWeight": "enable_compress_weight",
    "ge.enableSingleStream": "enable_single_stream",
    "ge.tiling_schedule_optimize": "tiling_schedule_optimize",
    "ge.status_check": "status_check",
    "ge.oo.level": "oo_level",
    "ge.opDebugLevel": "op_debug_level",
    "ge.debugDir": "debug_dir",
    "ge.op_compiler_cache_mode": "op_compiler_cache_mode",
    "ge.op_compiler_cache_dir": "op_compiler_cache_dir",
    "ac_parallel_enable": "ac_parallel_enable",
    "op_debug_config": "op_debug_config",
}
"""GE's option -> ATC's flag."""

ELSEWHERE: Mapping[str, str] = {
    "ge.socVersion": "set soc_version in [ascend_ge_context]",
    "ge.inputShape": "set input_shape in [ascend_context]",
    "ge.dynamicDims": "set dynamic_dims in [ascend_context]",
    "ge.dynamicBatchSize": "set dynamic_dims in [ascend_context]",
    "ge.dynamicImageSize": "set dynamic_dims in [ascend_context]",
    "ge.externalWeight": "weights are put into files where a group or other processes share them",
    "ge.exec.rankTableFile": "set rank_table_file in [ascend_context]",
    "ge.exec.rankId": "set context.ascend.rank_id",
    "ge.exec.deviceId": "set context.ascend.device_id",
}
"""Options that have a place of their own, and which."""

# Values with which GE runs inference anyway; another one is refused.
_FIXED = {"ge.graphRunMode": "0", "ge.exec.isUseHcom": "1", "ge.jit_compile": "2"}


def flags_of(config: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return ATC's flags for the options of all sections; ValueError naming one that has none."""
    found: dict[str, str] = {}
    for section in SECTIONS:
        for option, value in config.get(section, {}).items():
            if option in FLAGS:
                found[FLAGS[option]] = value
            elif _FIXED.get(option) != value:
                raise _refused(section, option, value)
    if found.get("precision_mode") and found.get("precision_mode_v2"):
        raise ValueError(
            "options 'ge.exec.precision_mode' and 'ge.exec.precision_mode_v2' exclude each other; "
            "give one of them"
        )
    return found


def _refused(section: str, option: str, value: str) -> ValueError:
    where = f"[{section}] {option}"
    if option in ELSEWHERE:
        return ValueError(f"{where}: {ELSEWHERE[option]}")
    if option in _FIXED:
        return ValueError(f"{where}: expected {_FIXED[option]!r}, got {value!r}")
    near = nearest(option, FLAGS)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(FLAGS)}"
    return ValueError(f"{where}: ATC has no flag for this option; {hint}")
