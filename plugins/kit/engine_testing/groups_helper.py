"""A backend that runs an operator of nobody else's, so that any other has to leave a node.

It is the null backend under another name, to which "example.unknown.Frobnicate" is Neg. The level
`groups` installs it for a test.
"""

from __future__ import annotations

from dataclasses import replace

from engine.hookspecs import hookimpl
from engine.types import BackendInfo, CompileOptions, LoadedModel, ModelSource
from engine_testing import null as _null  # not for who imports all names of this
from engine_testing.null import engine_compile as engine_compile
from engine_testing.null import engine_devices as engine_devices
from engine_testing.null import engine_predict as engine_predict

NAME = "groups_helper"
OPERATOR = ("example.unknown", "Frobnicate")


@hookimpl
def engine_backend() -> BackendInfo:
    """Say who this is."""
    return replace(_null.engine_backend(), name=NAME)


@hookimpl
def engine_load(source: ModelSource, options: CompileOptions) -> LoadedModel:
    """Read a model in which Neg stands for the operator."""
    import onnx

    from engine.reference.evaluator import Host, load

    data = source.data
    if data is None:
        assert source.path is not None  # the contract: one of the two is there
        data = source.path.read_bytes()
    model = onnx.load_model_from_string(data)
    for node in model.graph.node:
        if (node.domain, node.op_type) == OPERATOR:
            node.domain, node.op_type = "", "Neg"
    changed = replace(source, data=model.SerializeToString())
    return load(changed, Host(NAME, _null.DEVICE))
