"""What to pass instead of a keyword: those of onnxruntime, OpenVINO, torch, Keras and Polygraphy.

Imported where a call has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from engine.options import nearest

_DEVICES = (
    "providers provider execution_provider execution_providers ep backend backends device "
    "device_name device_type map_location"
)
_THREADS = (
    "intra_op_num_threads inter_op_num_threads num_threads n_threads thread_num nthreads "
    "cpu_threads cpu_thread_num"
)
_SIZES = "batch_size max_batch_size input_shape input_shapes shape shapes dynamic_shapes"
_TYPES = "dtype torch_dtype compute_type precision half fp16 bf16 int8"
_FEEDS = "feed_dict input_feed feeds feed data x input images args kwargs input_ids"
_BY_NAME = "inputs go in one argument: model.{0}({{{1!r}: array}}), or model.{0}(array) by place"
_TAKE_INPUTS = ("Model.predict_async", "Model.profile")

_LOAD = {
    _DEVICES: "say where to run with target, as engine.load(path, target='gpu'); engine.backends() "
    "shows what there is",
    "provider_options sess_options session_options options ov_config core_config backend_config "
    "compile_options properties": "pass settings as config={'cpu_context': {key: value}}, threads "
    "and device_id as arguments",
    "device_index gpu_id device_ids npu_id": "did you mean 'device_id'?",
    _THREADS: "did you mean 'threads'?",
    "path path_or_bytes model_path model_file filename file file_path xml f onnx_file "
    "pretrained_model_name_or_path": "the model goes first: engine.load(path)",
    "key password decryption_key": "did you mean 'dec_key'?",
    "config_path config_dict config_file": "did you mean 'config'?",
    _SIZES: "open axes take any size in a call; model.resize(model.get_inputs(), [[1, 3]]) fixes "
    "sizes",
    _TYPES: "a model runs in the types of its file; `engine convert --fp16` stores float16",
    "timeout timeout_s": "a deadline is a call's: model.predict(inputs, timeout_s=0.5)",
    "enable_profiling profile profiling": "model.profile(inputs) measures",
}
_PREDICT = {
    "output_names output_name names": "model(inputs, outputs=['name']) chooses outputs",
    "timeout timeout_ms timeout_seconds deadline": "did you mean 'timeout_s', in seconds?",
    "run_options": "timeout_s and cancel stop a run",
    f"batch_size {_DEVICES}": "a model is loaded for its target and runs the whole array that it "
    "is given; pass parts of it for smaller batches",
}
_PROFILE = {
    "runs iterations iters n number repeat steps": "did you mean 'predicts'?",
    _DEVICES: "a model is loaded for its target: engine.load(path, target='gpu')",
}
_BENCH = {
    _DEVICES: "did you mean 'target'?",
    "iterations iters n number repeat num_runs steps": "did you mean 'runs'?",
    "duration seconds time min_run_time timeout timeout_s": "did you mean 'duration_s'?",
    "warmup warmup_runs warm_up warmup_ms": "did you mean 'warmup_s', in seconds?",
    "concurrency num_requests streams nstreams workers": "did you mean 'clients'?",
    "intra_op_num_threads num_threads thread_num": "did you mean 'threads'?",
    f"{_SIZES} {_FEEDS}": "pass the arrays to run on: engine.bench(path, {'name': array})",
    "config device_id": "load it with that: engine.bench(engine.load(path, device_id=1))",
}
_COMPARE = {
    f"{_DEVICES} target": "did you mean 'targets', two of them: ('cpu', 'reference')?",
    "rel rel_tol relative": "did you mean 'rtol'?",
    "abs abs_tol absolute tol tolerance": "did you mean 'atol'?",
    "timeout": "did you mean 'timeout_s'?",
    _FEEDS: "did you mean 'inputs'?",
    "config threads device_id": "load each with that: engine.compare(engine.load(...), "
    "engine.load(...))",
}
_CONTEXT = {
    f"{_DEVICES} target targets": "say where to run in the context: context.target = ['gpu']",
    f"threads {_THREADS}": "did you mean 'context'? it has the threads: context.cpu.thread_num = 4",
    "device_id device_index gpu_id device_ids npu_id": "did you mean 'context'? it has the device: "
    "context.gpu.device_id = 1, context.ascend.device_id = 1",
    "key password decryption_key": "did you mean 'dec_key'?",
    _TYPES: "a model runs in the types of its file; `engine convert --fp16` stores float16",
}
_BUILD = {
    **_CONTEXT,
    "config config_file config_info options": "did you mean 'config_path', or 'config_dict' for a "
    "dict?",
    _SIZES: "open axes take any size in a predict; model.resize(model.get_inputs(), [[1, 3]]) "
    "fixes sizes",
}
_BUILD_RUNNER = {
    **_CONTEXT,
    "model_type": "the file's content says its type; leave it out",
    "config config_file config_path config_dict config_info options": "settings are the context's: "
    "context.parallel.config_path, context.parallel.config_info",
    "workers workers_num num_workers": "did you mean 'context'? it has their number: "
    "context.parallel.workers_num = 2",
    "batch_size": "did you mean 'max_batch_size'?",
}
_CONVERT = {
    "decrypt_key decrypt_mode device device_id enable_encryption encrypt_key infer "
    "input_data_type input_format input_shape optimize output_data_type rank_id save_type "
    "weight_fp16": "it is an attribute of the converter, to be set before",
    "input input_file input_path model model_path path": "did you mean 'model_file'?",
    "out output output_path save_path": "did you mean 'output_file'?",
    "config config_path config_dict config_info": "did you mean 'config_file'? "
    "converter.set_config_info(section, dict) takes a dict",
    "fmk framework": "did you mean 'fmk_type'?",
}
_SLICE = {
    "path model_path model_file": "did you mean 'model'?",
    "output output_dir output_folder folder out_dir": "did you mean 'out'?",
    "tensor_parallel tensor_parallel_size tp_size mp model_parallel": "did you mean 'tp'?",
    "pipeline_parallel pipeline_parallel_size pp_size pipeline_stages stages": "did you mean 'pp'?",
    "world_size ranks": "did you mean 'tp'? there are tp x pp ranks",
    f"{_DEVICES} target": "did you mean 'context'? it says where the slices are checked",
}
_MODEL = "engine.load(path, target='cpu') builds one; Model() takes nothing"

_TABLES = {
    "engine.load": _LOAD,
    "engine.bench": _BENCH,
    "engine.compare": _COMPARE,
    "Converter.convert": _CONVERT,
    "Model.build_from_buffer": _BUILD,
    "Model.build_from_file": _BUILD,
    "Model.predict_async": _PREDICT,
    "Model.profile": _PROFILE,
    "ModelParallelRunner.build_from_file": _BUILD_RUNNER,
    "slice_model": _SLICE,
}


def unexpected(
    name: str,
    names: Sequence[str],
    count: int,
    arguments: Sequence[Any],
    keywords: Iterable[str] = (),
) -> TypeError:
    """Return the error for arguments that a function does not have.

    names: its own, the first `count` of which go by place too, `self` among them. arguments,
    keywords: what it was given, where some are too many or unknown.
    """
    own = [each for each in names if each != "self"]
    for keyword in keywords:
        if keyword not in own:
            text = f"{name}() got an unexpected keyword argument {keyword!r}"
            return TypeError(f"{text}; {_hint(name, own, keyword, arguments)}")
    skipped = len(names) - len(own)
    text = (
        f"{name}() takes at most {count - skipped} arguments by place, got "
        f"{len(arguments) - skipped}"
    )
    by_keyword = ", ".join(names[count:])
    return TypeError(f"{text}; {f'by keyword: {by_keyword}' if by_keyword else _MODEL}")


def _hint(name: str, own: Sequence[str], keyword: str, arguments: Sequence[Any]) -> str:
    if name == "Model":
        return _MODEL
    takes_inputs = name in _TAKE_INPUTS
    inputs = _input_names(arguments[0]) if takes_inputs and arguments else []
    if keyword in inputs:
        return _BY_NAME.format(name.partition(".")[2], keyword)
    for words, hint in _TABLES[name].items():
        if keyword in words.split():
            return hint
    if near := nearest(keyword, own):
        return f"did you mean {near!r}?"
    if takes_inputs:
        of_model = inputs[0] if inputs else "name"
        return _BY_NAME.format(name.partition(".")[2], of_model)
    return f"it takes: {', '.join(own)}"


def _input_names(model: Any) -> list[str]:
    return [spec.name for spec in model.inputs] if model._built is not None else []
