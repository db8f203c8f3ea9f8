"""A backend of inference-engine, slow and exact, on onnx's reference evaluator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from engine.errors import BackendUnavailable, InputError, ModelError, one_line
from engine.hookspecs import hookimpl
from engine.options import parsed
from engine.types import (
    BackendInfo,
    Capability,
    Check,
    CompileOptions,
    Device,
    DeviceInfo,
    Devices,
    GraphInfo,
    MemoryReport,
    ModelSource,
    Option,
    Placement,
    TensorSpec,
    ValueKind,
    Values,
)

__version__ = "0.1.0"

NAME = "mine"  # the target, and the entry point in pyproject.toml
DEVICE = Device(NAME, 0)

OPTIONS: Mapping[str, Option] = {
    "unsupported_ops": Option(text="operators to refuse, for example Relu,Tanh"),
}

# By operator: the operator set of ONNX from which on the runtime computes it right.
RIGHT_FROM = {
    "Softmax": 13, "LogSoftmax": 13, "Hardmax": 13, "BatchNormalization": 14,
    "Resize": 11, "Upsample": 9, "GatherElements": math.inf, "LpNormalization": math.inf,
    "Add": 7, "Sub": 7, "Mul": 7, "Div": 7, "Pow": 7, "Equal": 7, "Greater": 7, "Less": 7,
    "And": 7, "Or": 7, "Xor": 7,
}  # fmt: skip


@hookimpl
def engine_backend() -> BackendInfo:
    return BackendInfo(
        name=NAME,
        version=__version__,
        device_types=(NAME,),
        providers=("reference",),
        options=OPTIONS,
        capabilities=frozenset({Capability.DYNAMIC_SHAPES, Capability.MIXED_PLACEMENT}),
    )


@hookimpl
def engine_devices() -> Devices:
    """A missing runtime is an answer with a fix, not an exception."""
    if find_spec("onnx") is None:
        return Devices(reason="the onnx package is missing", fix="run: pip install onnx")
    return Devices(found=(DeviceInfo(DEVICE, "onnx's reference evaluator"),))


@hookimpl
def engine_diagnose() -> Sequence[Check]:
    """The lines of `engine doctor`: driver, libraries and versions, each with its fix."""
    devices = engine_devices()
    return [Check("onnx can be imported", bool(devices.found), devices.reason, devices.fix)]


class MyModel:
    """A LoadedModel: a model that was read and not compiled."""

    def __init__(
        self, name: str, graph: GraphInfo, proto: Any, unsupported: Mapping[int, str]
    ) -> None:
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self.unsupported = unsupported
        self.name = name
        self.graph = graph
        self.proto = proto

    def close(self) -> None:
        self.proto = None


@hookimpl
def engine_load(source: ModelSource, options: CompileOptions) -> MyModel:
    """The first hook that may import the runtime."""
    import onnx

    refused = parsed(options.options, OPTIONS)["unsupported_ops"].split(",")
    graph, path = source.graph, str(source.path or "")
    assert graph is not None  # it is None only for a compiled form of this backend
    try:
        if source.data is None:
            assert source.path is not None
            proto = onnx.load(source.path)  # with the external data beside it
        else:  # the core has checked these bytes: they take precedence over the file
            proto = onnx.load_model_from_string(source.data)
            if source.folder is not None:
                onnx.load_external_data_for_model(proto, str(source.folder))
        # Checks the model; what it returns also has the types and shapes between the nodes.
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except Exception as error:  # protobuf, the checker and shape inference share no base
        raise ModelError(
            f"{source.name}: not a valid ONNX model: {one_line(error)}", path
        ) from error
    specs = (*graph.inputs, *graph.outputs)
    others = {spec.name for spec in specs if spec.kind is not ValueKind.TENSOR}
    unsupported = {}  # another backend may run these nodes: the file is not wrong
    for node in graph.nodes:
        if node.op_type in refused or not onnx.defs.has(node.op_type, node.domain):
            unsupported[node.index] = f"no implementation of {node.op_type!r}"
        elif graph.opsets.get("", 0) < RIGHT_FROM.get(node.op_type, 0):
            unsupported[node.index] = f"no {node.op_type!r} of this operator set"
        elif others.intersection((*node.inputs, *node.outputs)):
            unsupported[node.index] = "only tensors run here"
    return MyModel(source.name, graph, proto, unsupported)


class MyExecutable:
    """An Executable: weights and code, which no predict changes."""

    def __init__(self, loaded: MyModel, run: Any) -> None:
        self.inputs = loaded.inputs
        self.outputs = loaded.outputs
        self.name = loaded.name
        self.run = run
        self._graph = loaded.graph

    def open_context(self) -> MyContext:
        return MyContext(self)

    def placement(self) -> Sequence[Placement]:
        return [
            Placement(
                index=node.index,
                node=node.name,
                op_type=node.op_type,
                backend=NAME,
                device=str(DEVICE),
                provider="reference",
                reason="the only provider",
            )
            for node in self._graph.nodes
        ]

    def memory(self) -> MemoryReport:
        return MemoryReport(weights_bytes=sum(weight.nbytes for weight in self._graph.parameters))

    def close(self) -> None:
        self.run = None


@hookimpl
def engine_compile(loaded: MyModel, options: CompileOptions) -> MyExecutable:
    from onnx.reference import ReferenceEvaluator

    if options.device != DEVICE:
        raise BackendUnavailable(f"device {options.device} is not there; found: {DEVICE}", NAME)
    for index, why in loaded.unsupported.items():
        raise ModelError(f"{loaded.name}: node {index} cannot run on backend {NAME!r}: {why}")
    try:
        run = ReferenceEvaluator(loaded.proto).run
    except Exception as error:  # the evaluator raises many types
        raise ModelError(f"{loaded.name}: {one_line(error)}") from error
    return MyExecutable(loaded, run)


class MyContext:
    """An ExecutionContext: used by one thread at a time."""

    def __init__(self, executable: MyExecutable) -> None:
        self._executable: MyExecutable | None = executable

    def run(self, inputs: Values, outputs: Values | None) -> Values:
        executable = self._executable
        assert executable is not None, "predict after close"
        named = {spec.name: value for spec, value in zip(executable.inputs, inputs)}
        try:
            results = executable.run(None, named)
        except Exception as error:  # operators raise any error of numpy
            raise ModelError(f"{executable.name}: {one_line(error)}") from error
        if outputs is None:
            outputs = [None] * len(results)
        values = [_stored(*triple) for triple in zip(results, executable.outputs, outputs)]
        return values if any(buffer is None for buffer in outputs) else outputs

    def close(self) -> None:
        self._executable = None


def _stored(result: Any, spec: TensorSpec, buffer: Any) -> Any:
    """Copy a result into the caller's buffer, or into new memory: it may be a view of an input."""
    if buffer is None:
        return np.array(result, spec.dtype.numpy, order="C")
    if buffer.shape != np.shape(result):
        raise InputError(
            f"output {spec.name!r}: expected a buffer of shape {list(np.shape(result))}, "
            f"got {list(buffer.shape)}",
            spec.name,
        )
    np.copyto(buffer, result)
    return buffer


@hookimpl
def engine_predict(context: MyContext, inputs: Values, outputs: Values | None) -> Values:
    """Run once. No checks here: the core has made them."""
    return context.run(inputs, outputs)
