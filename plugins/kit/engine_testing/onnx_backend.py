"""A backend in the shape that onnx's own tools drive: `onnx.backend.base.Backend`.

    from onnx.backend.test import BackendTest
    from engine_testing.onnx_backend import backend_for

    globals().update(BackendTest(backend_for("cpu"), __name__).test_cases)

Everything goes through `engine.Model`, so what is tested this way is what users get. The whole
suite is run faster, and crashes kept apart, by `engine_testing.onnx_suite`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep as OnnxBackendRep
from onnx.backend.base import namedtupledict

from engine import Context, Model
from engine.backends import find_target, open_backend
from engine.errors import BackendError, InputError, ModelError
from engine.types import DType

__all__ = ["Backend", "BackendRep", "backend_for"]

# ONNX's word for a device -> the device type here. A type that ONNX has no word for is its own.
_TYPES = {"cpu": "cpu", "cuda": "gpu"}


class BackendRep(OnnxBackendRep):
    """A model that is built and runs. `model` is the engine.Model; closing that frees it."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._outputs = namedtupledict("Outputs", [spec.name for spec in model.outputs])

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model once; gives its outputs in order, to be had by name as well.

        inputs: a list or tuple in the model's order, a mapping by name, or, for a model of one
        input, that array alone. A sequence is a list, an absent optional None.
        Raises what engine.Model.predict raises.
        """
        if not isinstance(inputs, list | tuple | Mapping):
            inputs = [inputs]
        results = self.model(**inputs) if isinstance(inputs, Mapping) else self.model(*inputs)
        return self._outputs(*results.values())


class Backend(OnnxBackend):
    """An installed backend, by name; the environment's ENGINE_ONNX_BACKEND chooses, else "cpu".

    `backend_for(name)` gives the class for another. Devices are ONNX's: "CPU", "CUDA", "CUDA:1";
    a backend for a device that ONNX has no word for is found as "CPU", the device of its tests,
    and by its own device type ("ascend:1"). beside: targets that run what this one does not.
    """

    backend: ClassVar[str] = ""
    config: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    beside: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether the backend takes this model, by building it."""
        try:
            cls.prepare(model, device).model.close()
        except ModelError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        """Build the model. Raises what engine.Model.build_from_buffer raises; its text says why."""
        built = Model()
        context, config = cls._settings(device)
        built.build_from_buffer(model.SerializeToString(), context=context, config_dict=config)
        return BackendRep(built)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Build the model, run it once, free it."""
        rep = cls.prepare(model, device)
        with rep.model:
            return rep.run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one operator as a model of its own.

        inputs: arrays for the inputs that the node names (none for ""), in order or by name.
        outputs_info: the (dtype, shape) of each output; None infers them. opset_version: of the
        node's domain; the newest that onnx knows by default.
        """
        names = list(dict.fromkeys(name for name in node.input if name))
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(names):
                raise InputError(f"expected {len(names)} inputs {names}, got {len(inputs)}")
            inputs = dict(zip(names, inputs, strict=True))
        elif set(inputs) != set(names):
            raise InputError(f"expected the inputs {names}, got {[*inputs]}")
        return cls.run_model(
            _model_of(node, inputs, outputs_info, kwargs.get("opset_version")), inputs, device
        )

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether the backend is installed, serves that device, and finds one here."""
        try:
            found = open_backend(cls._name()).devices().found
            device_type, number = cls._device(device)
        except BackendError:
            return False
        return any((info.device.type, info.device.id) == (device_type, number) for info in found)

    @classmethod
    def _name(cls) -> str:
        return cls.backend or os.environ.get("ENGINE_ONNX_BACKEND", "") or "cpu"

    @classmethod
    def _device(cls, device: str) -> tuple[str, int]:
        """The device type here, and the number, of what ONNX calls "CUDA:1"."""
        kind, _, number = device.lower().partition(":")
        served = open_backend(cls._name()).info.device_types
        device_type = _TYPES.get(kind, kind)
        if kind == "cpu" and not set(served) & set(_TYPES.values()):
            device_type = served[0]
        return device_type, int(number or 0)

    @classmethod
    def _settings(cls, device: str) -> tuple[Context, dict[str, dict[str, str]]]:
        device_type, number = cls._device(device)
        context = Context()
        served = open_backend(cls._name()).info.device_types
        # The name alone stands for the first type that the backend serves.
        first = device_type == served[0]
        own = cls._name() if first else f"{device_type}:{cls._name()}"
        context.target = [own, *cls.beside]
        context.gpu.device_id = context.ascend.device_id = number
        config = {name: dict(section) for name, section in cls.config.items()}
        if number and device_type not in ("gpu", "ascend"):  # those have a setting for it
            config.setdefault(f"{cls._name()}_context", {})["device_id"] = str(number)
        return context, config


def backend_for(
    name: str,
    config: Mapping[str, Mapping[str, str]] | None = None,
    beside: Sequence[str] = (),
) -> type[Backend]:
    """The class for the installed backend `name`; config: sections of options for every model.

    beside: targets that run what this one does not. Raises BackendError where one cannot be had.
    """
    for target in (name, *beside):
        find_target(target)
    return type(
        f"{name}_backend",
        (Backend,),
        {"backend": name, "config": config or {}, "beside": tuple(beside)},
    )


def _model_of(
    node: onnx.NodeProto, inputs: Mapping[str, Any], outputs_info: Any, version: int | None
) -> onnx.ModelProto:
    """A model of one node; the types of its inputs are those of the values given for them."""
    from onnx import defs, helper, shape_inference

    if version is None:
        version = defs.get_schema(node.op_type, domain=node.domain).since_version
    types = {name: _type_of(value) for name, value in inputs.items()}
    names = [name for name in node.output if name]
    if outputs_info is not None:
        outputs = {
            name: helper.make_tensor_type_proto(
                helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
            )
            for name, (dtype, shape) in zip(names, outputs_info, strict=True)
        }
    else:
        schema = defs.get_schema(node.op_type, version, node.domain)
        outputs = shape_inference.infer_node_outputs(schema, node, types)
    graph = helper.make_graph(
        [node],
        node.op_type,
        [helper.make_value_info(name, proto) for name, proto in types.items()],
        [helper.make_value_info(name, outputs[name]) for name in names],
    )
    imports = [helper.make_opsetid(node.domain, version)]
    return helper.make_model_gen_version(graph, opset_imports=imports)


def _type_of(value: Any) -> onnx.TypeProto:
    """The ONNX type of a value: a tensor's with its shape, or a sequence's."""
    from onnx import helper

    if isinstance(value, list):
        return helper.make_sequence_type_proto(_type_of(value[0]))
    array = np.asarray(value)
    return helper.make_tensor_type_proto(DType.from_numpy(array.dtype).onnx, array.shape)
