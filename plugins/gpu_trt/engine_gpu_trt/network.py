"""Load: from a validated model to TensorRT's network, or from a file to a compiled engine."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import BackendUnavailable, CompiledFormError, ModelError
from engine.types import CompileOptions, GraphInfo, ModelSource, NodeInfo
from engine_gpu_trt import dtypes, form, in_graph, messages, outside, precision, vendor
from engine_gpu_trt.cuda import open_gpu
from engine_gpu_trt.engines import describe, deserialize
from engine_gpu_trt.model import TrtModel
from engine_gpu_trt.options import read_settings

_FOREIGN = (
    "; an engine runs on the TensorRT version and the kind of device that it was compiled with: "
    "compile the model here"
)


def load(source: ModelSource, options: CompileOptions) -> TrtModel:
    """Read a model for `options.device`; raises what engine_load may raise."""
    settings = read_settings(options)
    gpu = open_gpu(options.device.id)  # proves a device; only then may TensorRT be touched
    trt = vendor.usable_tensorrt(settings.provider)
    if settings.cuda_graphs:
        vendor.cuda_bindings()  # raises before minutes of building
    model = TrtModel(source, settings, gpu, trt)
    try:
        if source.compiled is not None:
            _load_form(model, source.compiled, options)
        elif source.format == "plan":
            _load_plan(model)
        else:
            _load_onnx(model, options)
    except BaseException:
        model.close()
        raise
    return model


def _load_plan(model: TrtModel) -> None:
    source = model.source
    data = _bytes(source)
    if not data:
        raise ModelError(f"{source.name}: it is empty, expected a TensorRT engine", _path(source))
    model.engine = deserialize(model.gpu, model.trt, data, source.name, _path(source), _FOREIGN)
    model.inputs, model.outputs, model.names = describe(model.engine, source.name)


def _load_form(model: TrtModel, folder: Path, options: CompileOptions) -> None:
    """Load a compiled form. The model's own file is not looked at."""
    loaded, plan, digest = form.read(folder, options, form.made_with(model.gpu, model.trt))
    if options.variable_weights:
        digest = ""  # an engine of its own, to exchange weights in
    try:
        model.engine = deserialize(
            model.gpu, model.trt, plan, f"{folder / form.PLAN_FILE}", digest=digest
        )
    except ModelError as error:
        raise CompiledFormError(str(error)) from error
    tensors = {*model.engine.inputs, *model.engine.outputs}
    named = {*loaded.names.values(), *(spec.name for spec in loaded.outputs), *loaded.outside}
    if tensors != named:
        raise CompiledFormError(f"{folder}: names {sorted(named)}, its engine {sorted(tensors)}")
    model.form, model.names, model.outside = loaded, loaded.names, loaded.outside
    model.collectives = loaded.collectives
    graph = model.source.graph
    model.inputs = loaded.inputs if graph is None else graph.inputs
    model.outputs = loaded.outputs if graph is None else graph.outputs


def _load_onnx(model: TrtModel, options: CompileOptions) -> None:
    source = model.source
    graph = source.graph
    assert graph is not None, "the core reads every ONNX file before a backend does"
    model.inputs, model.outputs = graph.inputs, graph.outputs
    refused = {
        spec.name: reason
        for role, specs in (("input", graph.inputs), ("output", graph.outputs))
        for spec in specs
        if (reason := dtypes.refusal(spec, role))
    }
    if refused:
        model.unsupported = _touching(graph, refused, source)
        return
    if in_graph.collectives_of(graph):
        model.unsupported = in_graph.take_in(model, options)
        if model.unsupported:
            return
    if model.settings.fp16 and _parse_float16(model, options):
        model.how = " in float16 where that is sound (preferred_fp16)"
    else:
        mark = messages.mark()
        _take_out(model, options)
        with model.gpu:
            model.builder, model.network, model.parser = _parser(model.trt)
            if not _parse(model):
                model.unsupported = _unsupported(model, graph, messages.since(mark))
                return
            if model.collectives:
                in_graph.set_ranks(model.network, model.trt, options.world_size)
    with model.gpu:
        tensors = [model.network.get_input(i) for i in range(model.network.num_inputs)]
        deciding = {tensor.name for tensor in tensors if tensor.is_shape_tensor}
        # An input that is an output as well is called "__" and its name by the parser.
        known = {tensor.name for tensor in tensors}
        del tensors
    names = {s.name: s.name if s.name in known else f"__{s.name}" for s in graph.inputs}
    model.names = {ours: theirs for ours, theirs in names.items() if theirs in known}
    reasons = {
        ours: f"input {ours!r} decides a shape, and TensorRT would have to be told the range of "
        "its values, which this backend cannot do yet"
        for ours, theirs in names.items()
        if theirs in deciding
    }
    if reasons:
        model.unsupported = _touching(graph, reasons, source)


def _take_out(model: TrtModel, options: CompileOptions) -> None:
    """Have weights outside the engine where they are to be shared."""
    if outside.is_wanted(options):
        model.data, model.outside = outside.take_out(
            model.source, model.data, options.variable_weights
        )


def _parse_float16(model: TrtModel, options: CompileOptions) -> bool:
    """Have TensorRT read the model rewritten to float16; False where it does not take that."""
    model.data = precision.to_float16(model.source)
    _take_out(model, options)
    with model.gpu:
        model.builder, model.network, model.parser = _parser(model.trt)
        if model.parser.parse(model.data):
            return True
        model.how = " in float32: TensorRT refuses it in float16"
        model.parser = model.network = model.builder = None
        model.data, model.outside = b"", {}
        return False


def _parser(trt: Any) -> tuple[Any, Any, Any]:
    """Make a builder, an empty network and its parser; keep all three while one is used."""
    log = messages.logger(trt)
    try:
        builder = trt.Builder(log)
    except (RuntimeError, TypeError) as error:
        raise BackendUnavailable(
            f"TensorRT does not start: {messages.tidy(str(error))}; run: engine plugins",
            "gpu_trt",
        ) from error
    # Types are the model's own: TensorRT 11 knows nothing else, and 10 does the same with this.
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    if network is None:
        del builder
        raise BackendUnavailable("TensorRT does not make a network; run: engine plugins", "gpu_trt")
    return builder, network, trt.OnnxParser(network, log)


def _parse(model: TrtModel) -> bool:
    source, parser = model.source, model.parser
    if source.data is None and not model.data:
        return bool(parser.parse_from_file(str(source.path)))
    return bool(parser.parse(model.data or source.data, _location(source)))


def _location(source: ModelSource) -> str | None:
    """Return a path in the folder of the external data: the parser goes by its folder only."""
    if source.folder is not None:
        return str(source.folder / "model.onnx")
    return str(source.path) if source.path is not None else None


# ---------------------------------------------------------------------------- what cannot be run


def _touching(graph: GraphInfo, refused: Mapping[str, str], source: ModelSource) -> dict[int, str]:
    """Return the nodes that read or write a tensor TensorRT cannot take, each with the reason."""
    reasons: dict[int, str] = {}
    for node in graph.nodes:
        for name in (*node.inputs, *node.outputs):
            if name in refused:
                reasons.setdefault(node.index, refused[name])
    if not reasons:
        raise ModelError(f"{source.name}: {next(iter(refused.values()))}", _path(source))
    return reasons


def _unsupported(model: TrtModel, graph: GraphInfo, heard: messages.Heard) -> dict[int, str]:
    """Ask TensorRT which nodes it can run, after its parser refused the model.

    Raises ModelError where that is no node's fault. Not asked before: it parses everything
    again, and finds fault with data-dependent shapes that the parser takes.
    """
    source = model.source
    errors = messages.parser_errors(model.parser)
    if all(error.node() < 0 for error in errors):
        text = "; ".join(messages.tidy(error.desc()) for error in errors) or str(heard)
        raise ModelError(f"{source.name}: TensorRT's parser cannot read it: {text}", _path(source))
    builder, network, parser = _parser(model.trt)
    try:
        parser.supports_model_v2(_bytes(source), _location(source))
        supported = {
            index
            for part in range(parser.num_subgraphs)
            for index in parser.get_subgraph_nodes(part)
        }
        reasons = {
            error.node(): _reason(error)
            for error in (*messages.parser_errors(parser), *errors)
            if error.node() >= 0
        }
        return {
            node.index: reasons.get(node.index) or _without_error(parser, node)
            for node in graph.nodes
            if node.index in reasons or node.index not in supported
        }
    finally:
        del parser, network, builder


def _reason(error: Any) -> str:
    text = messages.tidy(error.desc())
    operator = error.node_operator()
    if "Plugin not found" in text:
        return f"TensorRT has no operator {operator!r} and no plugin of that name"
    if text == "false":
        return f"TensorRT does not run operator {operator!r}"
    return f"TensorRT refuses it: {text}"


def _without_error(parser: Any, node: NodeInfo) -> str:
    if not parser.supports_operator(node.op_type):
        return f"TensorRT has no operator {node.op_type!r}"
    return "TensorRT leaves it out of what it can run, without an error"


# ------------------------------------------------------------------------------------- the bytes


def _bytes(source: ModelSource) -> bytes | mmap.mmap:
    """Return the model's bytes; those of a file are mapped, not read."""
    if source.data is not None:
        return source.data
    assert source.path is not None, "a source has bytes or a path"
    return _mapped(source.path)


def _mapped(path: Path) -> bytes | mmap.mmap:
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                return b""  # which cannot be mapped
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error}", str(path)) from error


def _path(source: ModelSource) -> str:
    return str(source.path or "")
