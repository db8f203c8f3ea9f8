"""The emulated ATC: checks its command line as the real one does and writes an emulated .om.

The environment variable EMULATED_ATC makes it misbehave: a JSON object with
`fail` (a message to fail with), `crash` (true: SIGSEGV), `no_output` (true: success without a
file), `sleep_s` (works so long, printing dots), `worker` (a file for the pid of a child process
that it starts and leaves), `drop_unused` (true: inputs that nothing reads are not in the .om).
EMULATED_ATC_RUNS names a file that gets a line at every run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper, shape_inference

from emulated_ascend.compute import open_session
from emulated_ascend.omfile import FROM_ONNX, Om, Value, Weight, nbytes

ALLOWED_PATH = re.compile(r"[A-Za-z0-9._/\u4e00-\u9fa5-]+")
SOCS = re.compile(
    r"Ascend(310|310P[1-7]|310B[1-4]|910|910A|910B|910B[1-4]|910B2C|910B4-1|910_93\d\d|910ProA)"
)
PRECISION = {
    "", "force_fp16", "force_fp32", "cube_fp16in_fp32out", "allow_mix_precision",
    "allow_fp32_to_fp16", "must_keep_origin_dtype", "allow_mix_precision_fp16",
    "allow_mix_precision_bf16", "allow_fp32_to_bf16",
}  # fmt: skip
PRECISION_V2 = {
    "", "fp16", "origin", "cube_fp16in_fp32out", "mixed_float16", "mixed_bfloat16", "cube_hif8",
    "mixed_hif8",
}  # fmt: skip
HALF = {"force_fp16", "allow_mix_precision", "allow_mix_precision_fp16", "fp16", "mixed_float16"}
FLAGS = {
    "ac_parallel_enable", "aicore_num", "allow_hf32", "buffer_optimize", "check_report",
    "compress_weight_conf", "core_type", "customize_dtypes", "debug_dir", "deterministic",
    "deterministic_level", "device_id", "disable_reuse_memory", "display_model_info", "dump_mode",
    "dynamic_batch_size", "dynamic_dims", "dynamic_image_size", "enable_compress_weight",
    "enable_scope_fusion_passes", "enable_single_stream", "enable_small_channel",
    "external_weight", "framework", "fusion_switch_file", "help", "host_env_cpu", "host_env_os",
    "input_format", "input_fp16_nodes", "input_hint_shape", "input_shape", "input_shape_range",
    "insert_op_conf", "is_input_adjust_hw_layout", "is_output_adjust_hw_layout", "json",
    "keep_dtype", "log", "mode", "model", "modify_mixlist", "om", "oo_level",
    "op_compiler_cache_dir", "op_compiler_cache_mode", "op_debug_config", "op_debug_level",
    "op_name_map", "op_precision_mode", "op_select_implmode", "optypelist_for_implmode",
    "out_nodes", "output", "output_type", "precision_mode", "precision_mode_v2", "raw_ge_options",
    "save_original_model", "shape_generalized_build_mode", "singleop", "soc_version", "sparsity",
    "status_check", "tiling_schedule_optimize", "virtual_type", "weight",
}  # fmt: skip
OUTPUT_TYPES = {"FP32": 1, "FP16": 10, "UINT8": 2, "INT8": 3, "INT32": 6, "INT64": 7}
OPEN = (0, -1)  # -1, which GE reads as 0 or more


class Refused(Exception):
    """An error that ATC prints and ends with."""


def main(arguments: list[str]) -> int:
    """Compile; returns the exit status, 255 for any failure."""
    print("ATC start working now, please wait for a moment.", flush=True)
    if "EMULATED_ATC_RUNS" in os.environ:
        with open(os.environ["EMULATED_ATC_RUNS"], "a") as runs:
            runs.write("1\n")
    behaviour = json.loads(os.environ.get("EMULATED_ATC", "{}"))
    try:
        _misbehave(behaviour)
        flags = parse(arguments)
        check(flags)
        files: dict[str, bytes] = {}
        om = compile_model(flags, bool(behaviour.get("drop_unused")), files)
    except Refused as refusal:
        print(
            "ATC run failed, Please check the detail log, Try 'atc --help' for more information\n"
            f"{refusal}",
            flush=True,
        )
        return 255
    if not behaviour.get("no_output"):
        path = Path(flags["output"] + ".om")
        path.write_bytes(om.write())
        for name, data in files.items():
            (path.parent / "weight").mkdir(exist_ok=True)
            (path.parent / "weight" / name).write_bytes(data)
    print("...\nATC run success, welcome to the next use.", flush=True)
    return 0


def _misbehave(behaviour: dict[str, Any]) -> None:
    if "worker" in behaviour:
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        Path(behaviour["worker"]).write_text(str(worker.pid))
    stop_at = time.monotonic() + behaviour.get("sleep_s", 0)
    while time.monotonic() < stop_at:
        print(".", end="", flush=True)
        time.sleep(0.05)
    if behaviour.get("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if "fail" in behaviour:
        raise Refused(behaviour["fail"])


def _invalid(name: str, value: str, reason: str) -> NoReturn:
    raise Refused(f"E10001: Value [{value}] for parameter [--{name}] is invalid. Reason: {reason}")


def parse(arguments: list[str]) -> dict[str, str]:
    """Read --name=value, as gflags does."""
    flags: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not equals:
            raise Refused(f"E10005: Failed to parse the argument {argument}")
        if name not in FLAGS:
            raise Refused(f"E10044: Unknown parameter [--{name}]")
        flags[name] = value
    return flags


def check(flags: dict[str, str]) -> None:
    """Refuse what needs no look at the model."""
    if flags.get("framework") != "5":
        raise Refused("E10007: [--framework] must be 5(Onnx) for an ONNX model")
    for name in ("soc_version", "output", "model"):
        if not flags.get(name):
            raise Refused(f"E10054: The required parameter [--{name}] for ATC is empty.")
    if not SOCS.fullmatch(flags["soc_version"]):
        _invalid("soc_version", flags["soc_version"], "The SoC is not known.")
    model = Path(flags["model"])
    if not model.is_file():
        raise Refused(f"E13000: Path [{model}] is invalid. Reason: No such file or directory.")
    for name, path in (("model", str(model.resolve())), ("output", flags["output"] + ".om")):
        if not ALLOWED_PATH.fullmatch(path):
            _invalid(name, path, "The path can only contain 'a-z' 'A-Z' '0-9' '-' '.' '_'")
    for name, allowed in (("precision_mode", PRECISION), ("precision_mode_v2", PRECISION_V2)):
        if flags.get(name, "") not in allowed:
            _invalid(name, flags[name], "The current value is not within the valid range.")
    if flags.get("precision_mode") and flags.get("precision_mode_v2"):
        raise Refused("E10056: precision_mode and precision_mode_v2 cannot both be configured.")
    if flags.get("external_weight", "0") not in ("0", "1", "2"):
        _invalid("external_weight", flags["external_weight"], "It must be 0, 1 or 2.")
    kinds = ("dynamic_batch_size", "dynamic_image_size", "dynamic_dims")
    dynamic = [name for name in kinds if flags.get(name)]
    if len(dynamic) + bool(flags.get("input_shape_range")) > 1:
        raise Refused(
            "E10009: dynamic_batch_size, dynamic_image_size, dynamic_dims, input_shape_range are "
            "mutually exclusive."
        )
    if dynamic and not flags.get("input_shape"):
        raise Refused("E10004: Value for parameter [--input_shape] is empty.")
    if dynamic and "~" in flags["input_shape"]:
        raise Refused("E10040: input_shape cannot have '~' with dynamic dims.")
    if flags.get("output_type") and flags["output_type"] not in OUTPUT_TYPES:
        _invalid("output_type", flags["output_type"], f"Supported: {', '.join(OUTPUT_TYPES)}")


def parse_shape(text: str) -> dict[str, list[tuple[int, int]]]:
    """Read --input_shape: for each input its axes as (lowest, highest), -1 without a highest."""
    shapes: dict[str, list[tuple[int, int]]] = {}
    for part in filter(None, text.split(";")):
        name, colon, dims = part.rpartition(":")
        if not colon:
            raise Refused(f"E10002: {part}: The shape must contain two parts: name and value")
        axes = []
        for dim in filter(None, dims.split(",")):
            match = re.fullmatch(r"\s*(-1|\d+)(?:~(\d+))?\s*", dim)
            if not match:
                raise Refused(f"E10002: {part}: It is not a digit")
            low = int(match[1])
            axes.append(OPEN if low == -1 else (low, int(match[2]) if match[2] else low))
        shapes[name.strip()] = axes
    return shapes


def parse_gears(text: str, count: int) -> list[list[int]]:
    """Read --dynamic_dims: 2 to 100 rows of `count` sizes, none twice."""
    gears = []
    for row in text.rstrip(";").split(";"):
        sizes = row.split(",")
        if len(sizes) != count:
            raise Refused(
                f"E10003: dynamic_dims {text}: Each setting needs to be consistent with the number "
                "of -1 in the input shape."
            )
        if not all(size.strip().isdecimal() for size in sizes):
            _invalid("dynamic_dims", row, "Dynamic dims must be a positive integer.")
        gears.append([int(size) for size in sizes])
    if not 2 <= len(gears) <= 100:
        raise Refused(f"E10035: {len(gears)} gears in --dynamic_dims; it must be in [2, 100].")
    if len({tuple(gear) for gear in gears}) != len(gears):
        raise Refused("E10039: --dynamic_dims exist duplicate shapes.")
    return gears


def compile_model(
    flags: dict[str, str], drop_unused: bool = False, files: dict[str, bytes] | None = None
) -> Om:
    """Read the model, fix its shapes, split off its weights. files: gets those in files."""
    made = {} if files is None else files
    try:
        model = onnx.load(flags["model"], load_external_data=False)
        _read_external(model, Path(flags["model"]).resolve().parent)
        onnx.checker.check_model(model)
    except Exception as error:
        raise Refused(
            f"E16001: Failed to parse the ONNX model: {' '.join(str(error).split())[:300]}"
        ) from error
    constants = {value.name for value in model.graph.initializer}
    for index in reversed(range(len(model.graph.input))):
        if model.graph.input[index].name in constants:
            del model.graph.input[index]
    axes = _axes(model, flags)
    if drop_unused:
        _drop_unused(model)
    gears: list[list[int]] = []
    if flags.get("dynamic_dims"):
        count = sum(axis == OPEN for value in axes.values() for axis in value)
        if not count:
            _invalid("input_shape", "0", "At least one dim should be -1 when dynamic_dims is set.")
        gears = parse_gears(flags["dynamic_dims"], count)
    if "output_type" in flags:
        _cast_outputs(model, OUTPUT_TYPES[flags["output_type"]])
    for value in model.graph.input:
        _set_dims(value, [low if low == high else None for low, high in axes[value.name]])
    inputs = [_value(value, axes[value.name]) for value in model.graph.input]
    for gear in gears:
        sizes = iter(gear)
        for value in inputs:
            dims = [dim if dim >= 0 else next(sizes) for dim in value.dims]
            value.nbytes = max(value.nbytes, nbytes(value.dtype, dims))
    gear_outputs = [_gear_outputs(model, axes, gear) for gear in gears]
    inferred = _infer(model)
    outputs = []
    for index, value in enumerate(inferred.graph.output):
        dims = [dim.dim_value if dim.HasField("dim_value") else -1
                for dim in value.type.tensor_type.shape.dim]  # fmt: skip
        dtype = FROM_ONNX[value.type.tensor_type.elem_type]
        size = 0 if -1 in dims else nbytes(dtype, dims)
        if gears:
            size = max(nbytes(dtype, row[index]) for row in gear_outputs)
        # ATC calls an output by its node, the node's output, and the tensor.
        outputs.append(Value(f"node_{index}:0:{value.name}", dtype, dims, size))
    is_open = any(-1 in value.dims for value in (*inputs, *outputs))
    om = Om(
        soc=flags["soc_version"], inputs=inputs, outputs=outputs, weights=[], weight_size=0,
        work_size=0 if is_open and not gears else 4096, is_half=_is_half(flags),
        is_ranged=is_open and not gears, gears=gears, gear_outputs=gear_outputs,
    )  # fmt: skip
    made.update(_split(model, om, flags.get("external_weight", "0") != "0"))
    return om


def _read_external(model: ModelProto, folder: Path) -> None:
    """Take in external data from beside the model, as GE's parser does: without onnx's checks."""
    for constant in model.graph.initializer:
        if constant.data_location != TensorProto.EXTERNAL:
            continue
        index = {entry.key: entry.value for entry in constant.external_data}
        data = (folder / index["location"]).read_bytes()[int(index.get("offset", 0)) :]
        constant.raw_data = data[: int(index.get("length", len(data)))]
        constant.ClearField("external_data")
        constant.data_location = TensorProto.DEFAULT


def _is_half(flags: dict[str, str]) -> bool:
    """Float16 where it is asked for, and where nothing is: ATC's own default."""
    chosen = flags.get("precision_mode") or flags.get("precision_mode_v2") or "fp16"
    return chosen in HALF


def _axes(model: ModelProto, flags: dict[str, str]) -> dict[str, list[tuple[int, int]]]:
    given = parse_shape(flags.get("input_shape", ""))
    names = {value.name for value in model.graph.input}
    for name in given:
        if name not in names and not any(name == value.name for value in model.graph.initializer):
            raise Refused(f"E10016: Opname [{name}] specified in [--input_shape] is not found.")
    axes = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        if tensor.elem_type not in FROM_ONNX:
            raise Refused(f"E19014: input {value.name} has an unsupported data type.")
        declared = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
        if value.name not in given:
            if not tensor.HasField("shape") or -1 in declared:
                raise Refused(
                    f"E10052: input {value.name} has dynamic dims {declared}: set --input_shape."
                )
            axes[value.name] = [(dim, dim) for dim in declared]
            continue
        axes[value.name] = given[value.name]
        wanted = [axis if dim < 0 else (dim, dim) for dim, axis in zip(declared, axes[value.name])]
        if tensor.HasField("shape") and (len(declared), wanted) != (
            len(axes[value.name]), axes[value.name],
        ):  # fmt: skip
            raise Refused(f"E10020: --input_shape of {value.name} does not fit {declared}.")
    is_ranged = any(low != high for value in axes.values() for low, high in value)
    is_old = flags["soc_version"].startswith("Ascend310B")
    if is_ranged and not flags.get("dynamic_dims") and is_old:
        raise Refused("E10055: dynamic shape ranges are not supported by this SoC.")
    return axes


def _value(value: onnx.ValueInfoProto, axes: list[tuple[int, int]]) -> Value:
    dtype = FROM_ONNX[value.type.tensor_type.elem_type]
    dims = [low if low == high else -1 for low, high in axes]
    highest = [high for _, high in axes]
    size = 0 if -1 in highest else nbytes(dtype, highest)
    return Value(value.name, dtype, dims, size, [list(axis) for axis in axes])


def _gear_outputs(
    model: ModelProto, axes: dict[str, list[tuple[int, int]]], gear: list[int]
) -> list[list[int]]:
    fixed = ModelProto()
    fixed.CopyFrom(model)
    sizes = iter(gear)
    for value in fixed.graph.input:
        _set_dims(value, [next(sizes) if axis == OPEN else axis[0] for axis in axes[value.name]])
    rows = []
    for value in _infer(fixed).graph.output:
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if not all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim):
            raise Refused(f"E10042: output {value.name} has no fixed shape for gear {gear}.")
        rows.append(dims)
    return rows


def _infer(model: ModelProto) -> ModelProto:
    """Return the model with its outputs' dims inferred from its inputs', not as declared."""
    bare = ModelProto()
    bare.CopyFrom(model)
    declared = {value.name: value for value in model.graph.output}
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        inferred = shape_inference.infer_shapes(bare, strict_mode=True, data_prop=True)
    except shape_inference.InferenceError as error:
        raise Refused(f"E89999: InferShape failed: {' '.join(str(error).split())[:300]}") from error
    for value in inferred.graph.output:
        if not value.type.tensor_type.HasField("shape"):  # the rank, at least, is declared
            value.type.tensor_type.shape.CopyFrom(declared[value.name].type.tensor_type.shape)
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()
    return inferred


def _set_dims(value: onnx.ValueInfoProto, dims: list[int | None]) -> None:
    shape = value.type.tensor_type.shape
    old = [dim.dim_param for dim in shape.dim]
    shape.ClearField("dim")
    value.type.tensor_type.shape.SetInParent()
    for index, dim in enumerate(dims):
        new = shape.dim.add()
        if dim is not None:
            new.dim_value = dim
        elif index < len(old) and old[index]:
            new.dim_param = old[index]


def _drop_unused(model: ModelProto) -> None:
    read = {name for node in model.graph.node for name in node.input}
    read |= {value.name for value in model.graph.output}
    for index in reversed(range(len(model.graph.input))):
        if model.graph.input[index].name not in read:
            del model.graph.input[index]


def _cast_outputs(model: ModelProto, to: int) -> None:
    for value in model.graph.output:
        inner = f"{value.name}_before_cast"
        for node in model.graph.node:
            node.output[:] = [inner if name == value.name else name for name in node.output]
            node.input[:] = [inner if name == value.name else name for name in node.input]
        model.graph.node.append(helper.make_node("Cast", [inner], [value.name], to=to))
        value.type.tensor_type.elem_type = to


def _split(model: ModelProto, om: Om, is_external: bool) -> dict[str, bytes]:
    """Move the constants of the main graph into the blob, or into files; returns these."""
    blob = bytearray()
    files: dict[str, bytes] = {}
    for constant in model.graph.initializer:
        array = numpy_helper.to_array(constant)
        if om.is_half and constant.data_type == TensorProto.FLOAT:
            array = array.astype("float16").astype("float32")
        raw = array.tobytes()
        if constant.data_type == TensorProto.STRING or constant.data_type not in FROM_ONNX:
            raise Refused(f"E19014: constant {constant.name} has an unsupported data type.")
        offset = len(blob)
        blob += raw + bytes(-len(raw) % 64)
        if is_external:
            name = f"weight_{hashlib.sha256(raw).hexdigest()}"
            files[name] = raw
            om.external.append([name, offset, len(raw)])
        om.weights.append(
            Weight(constant.name, constant.data_type, list(constant.dims), offset, len(raw))
        )
    model.graph.ClearField("initializer")
    om.graph = model.SerializeToString()
    try:
        open_session(om, bytes(blob))
    except Exception as error:
        raise Refused(f"E19010: {' '.join(str(error).split())[:300]}") from error
    om.blob = b"" if is_external else bytes(blob)
    om.weight_size = len(om.blob)
    return files


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
