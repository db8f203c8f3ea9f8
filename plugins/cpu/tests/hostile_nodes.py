"""Single-node models with hostile attributes, shapes, types and values; run in their own process.

    python hostile_nodes.py PROGRESS SEED FIRST LAST [--microsoft]

Builds and runs the models FIRST to LAST - 1 of a seed, and writes the number of each into the file
PROGRESS before it touches it: what is left there when the process is gone is the one that ended it.
A model is one of onnx's own node tests with a few things changed, which leads deep into kernels; or
a node made from an operator's schema alone, which reaches those that onnx has no test of.
"""

from __future__ import annotations

import functools
import os
import random
import resource
import struct
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, defs, helper, numpy_helper

Inputs = list[Any]

INTS = (
    -1, 0, 1, 2, 3, -2, -5, 7, 64, 1000, 65536, 2**31 - 1, -(2**31), 2**31, 2**32 + 1, 2**40,
    2**62, 2**63 - 1, -(2**63),
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 3.4e38, -3.4e38, 1e10, float("nan"), float("inf"))
TEXTS = ("", "x", "linear", "cubic", "nearest", "SAME_UPPER", "VALID", "CRD", "reflect", "sum",
         "a,b->ab", "ii->i", "...->", "LEAF", "BRANCH_EQ", "bidirectional", "é" * 300)  # fmt: skip
DIMS = (0, 1, 1, 2, 2, 3, 3, 4, 5, 17)
MEMORY_BYTES = 4 << 30  # of addresses: a kernel that asks for terabytes is to be refused them
TIME_S = 4.0


@functools.cache
def cases() -> list[tuple[bytes, Inputs]]:
    """Return onnx's node tests of one node: models and inputs."""
    from engine_testing.onnx_suite.cases import load_cases

    found = []
    for case in load_cases():
        if case.kind != "node" or len(case.model) > 100_000:
            continue
        if len(onnx.load_model_from_string(case.model).graph.node) == 1:
            found.append((case.model, case.runs[0][0]))
    return found


@functools.cache
def schemas(is_microsoft: bool) -> list[Any]:
    """Return the operators' schemas: onnx's, or those that ONNX Runtime adds."""
    if is_microsoft:
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        found = state.get_all_operator_schema()
        return sorted((s for s in found if s.domain == "com.microsoft"), key=lambda s: s.name)
    training = ("ai.onnx.preview.training", "ai.onnx.training")
    found = [s for s in defs.get_all_schemas_with_history() if s.domain not in training]
    return sorted(
        (s for s in found if not s.deprecated), key=lambda s: (s.domain, s.name, s.since_version)
    )


def model_of(number: int, seed: int, is_microsoft: bool = False) -> tuple[ModelProto, Inputs]:
    """Make model `number` of a seed, and inputs for it."""
    draw = random.Random(f"{seed}/{number}/{is_microsoft}")
    if is_microsoft or draw.random() < 0.35:
        return _from_schema(draw, draw.choice(schemas(is_microsoft)))
    text, inputs = draw.choice(cases())
    model, inputs = onnx.load_model_from_string(text), [*inputs]
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3))):
        draw.choice(_CHANGES)(draw, model, inputs)
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return model, inputs


# ------------------------------------------------------------------------------- what is changed


def _change_attribute(draw: random.Random, model: ModelProto, inputs: Inputs) -> None:
    node = model.graph.node[0]
    known = _schema(model, node)
    names = sorted(known.attributes) if known else [item.name for item in node.attribute]
    if not names:
        return
    name = draw.choice(names)
    given = {item.name: item for item in node.attribute}
    old = given.get(name)
    kind = old.type if old is not None else int(getattr(known.attributes[name].type, "value", 0))
    if kind in (AttributeProto.GRAPH, AttributeProto.GRAPHS, AttributeProto.TYPE_PROTO):
        return
    if old is not None:
        node.attribute.remove(old)
        if draw.random() < 0.1:
            return
    node.attribute.append(_attribute(draw, name, kind, old))


def _attribute(
    draw: random.Random, name: str, kind: int, old: AttributeProto | None = None
) -> AttributeProto:
    count = draw.choice((0, 1, 2, 2, 3, 4, 6))
    former = helper.get_attribute_value(old) if old is not None else None
    length = len(former) if isinstance(former, (list, tuple)) and draw.random() < 0.7 else count
    new = AttributeProto(name=name, type=kind)
    if kind == AttributeProto.INT:
        new.i = draw.choice(INTS)
    elif kind == AttributeProto.FLOAT:
        new.f = draw.choice(FLOATS)
    elif kind == AttributeProto.STRING:
        new.s = draw.choice(TEXTS).encode()
    elif kind == AttributeProto.INTS:
        new.ints.extend(_mostly(draw, list(former or ()), length, INTS))
    elif kind == AttributeProto.FLOATS:
        new.floats.extend(_mostly(draw, list(former or ()), length, FLOATS))
    elif kind == AttributeProto.STRINGS:
        new.strings.extend(draw.choice(TEXTS).encode() for _ in range(length))
    elif kind == AttributeProto.TENSOR:
        dtype = draw.choice((np.float32, np.int64, np.int32, np.uint8, np.float64))
        shape = [draw.choice(DIMS[:6]) for _ in range(draw.randint(0, 2))]
        new.t.CopyFrom(numpy_helper.from_array(np.zeros(shape, dtype)))
    return new


def _mostly(draw: random.Random, former: list[Any], length: int, of: tuple[Any, ...]) -> list[Any]:
    """Return a list of which one or all of the elements are drawn anew."""
    values = (former + [draw.choice(of[:6]) for _ in range(length)])[:length]
    for index in range(length):
        if draw.random() < (1 / length if former else 0.5):
            values[index] = draw.choice(of)
    return values


def _change_shape(draw: random.Random, model: ModelProto, inputs: Inputs) -> None:
    index = _tensor_input(draw, inputs)
    if index is None:
        return
    shape = list(inputs[index].shape)
    how = draw.random()
    if how < 0.4 and shape:
        shape[draw.randrange(len(shape))] = draw.choice(DIMS)
    elif how < 0.6 and shape:
        del shape[draw.randrange(len(shape))]
    elif how < 0.8:
        shape.insert(draw.randint(0, len(shape)), draw.choice(DIMS[1:6]))
    else:
        shape = [draw.choice(DIMS) for _ in range(draw.randint(0, 4))]
    if int(np.prod(shape)) <= 1 << 20:
        inputs[index] = np.resize(inputs[index], shape)
    _declare(draw, model, index, inputs[index])


def _change_values(draw: random.Random, model: ModelProto, inputs: Inputs) -> None:
    index = _tensor_input(draw, inputs)
    if index is None or not inputs[index].size:
        return
    array = inputs[index].copy()
    flat = array.reshape(-1)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(flat))
        if array.dtype.kind in "iu":
            limits = np.iinfo(array.dtype)
            flat[at] = min(max(draw.choice(INTS), int(limits.min)), int(limits.max))
        elif array.dtype.kind == "f":
            with np.errstate(all="ignore"):
                flat[at] = draw.choice(FLOATS)
    inputs[index] = array


def _make_constant(draw: random.Random, model: ModelProto, inputs: Inputs) -> None:
    index = _tensor_input(draw, inputs)
    if index is None or inputs[index].dtype.kind == "O":
        return
    value = model.graph.input[index]
    if not value.type.tensor_type.elem_type:  # an optional that holds one
        return
    try:
        tensor = helper.make_tensor(
            value.name, value.type.tensor_type.elem_type, inputs[index].shape,
            inputs[index].tobytes(), raw=True,
        )  # fmt: skip
    except (TypeError, ValueError):
        return
    model.graph.initializer.append(tensor)
    del model.graph.input[index]
    del inputs[index]


def _change_type(draw: random.Random, model: ModelProto, inputs: Inputs) -> None:
    index = _tensor_input(draw, inputs)
    if index is None or inputs[index].dtype.kind not in "iufb":
        return
    dtype = np.dtype(draw.choice(("f4", "f8", "f2", "i8", "i4", "i1", "u1", "u8", "i2", "?")))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs[index] = inputs[index].astype(dtype)
    kind = model.graph.input[index].type.tensor_type
    kind.elem_type = helper.np_dtype_to_tensor_dtype(dtype)
    for output in model.graph.output:
        if draw.random() < 0.5 and output.type.HasField("tensor_type"):
            output.type.tensor_type.elem_type = kind.elem_type


def _omit_input(draw: random.Random, model: ModelProto, inputs: Inputs) -> None:
    node = model.graph.node[0]
    if not node.input:
        return
    if draw.random() < 0.5:
        node.input[draw.randrange(len(node.input))] = ""
    else:
        node.input.append(draw.choice(("", node.input[0])))


def _omit_output(draw: random.Random, model: ModelProto, inputs: Inputs) -> None:
    node = model.graph.node[0]
    if draw.random() < 0.7 and len(node.output) > 1:
        index = draw.randrange(len(node.output))
        for output in [value for value in model.graph.output if value.name == node.output[index]]:
            model.graph.output.remove(output)
        node.output[index] = ""
    else:
        name = draw.choice(("", "extra"))
        node.output.append(name)
        if name and name not in {value.name for value in model.graph.output}:
            model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))


_CHANGES = (
    _change_attribute, _change_attribute, _change_attribute, _change_attribute, _change_shape,
    _change_shape, _change_values, _change_values, _make_constant, _change_type, _omit_input,
    _omit_output,
)  # fmt: skip


def _tensor_input(draw: random.Random, inputs: Inputs) -> int | None:
    found = [i for i, value in enumerate(inputs) if isinstance(value, np.ndarray)]
    return draw.choice(found) if found else None


def _declare(draw: random.Random, model: ModelProto, index: int, array: Any) -> None:
    kind = model.graph.input[index].type.tensor_type
    kind.ClearField("shape")
    if draw.random() < 0.6:
        kind.shape.SetInParent()
        for size in array.shape:
            if draw.random() < 0.8:
                kind.shape.dim.add(dim_value=size)
            else:
                kind.shape.dim.add()


def _schema(model: ModelProto, node: Any) -> Any:
    version = next((o.version for o in model.opset_import if o.domain == node.domain), 1)
    try:
        return defs.get_schema(node.op_type, version, node.domain)
    except defs.SchemaError:
        return None


# ------------------------------------------------------------------------- made of a schema alone

_ELEMENTS = {
    "float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "string": 8,
    "bool": 9, "float16": 10, "double": 11, "uint32": 12, "uint64": 13,
}  # fmt: skip


def _from_schema(draw: random.Random, schema: Any) -> tuple[ModelProto, Inputs]:
    types = {c.type_param_str: [*c.allowed_type_strs] for c in schema.type_constraints}
    chosen: dict[str, int] = {}
    shape = [draw.choice(DIMS) for _ in range(draw.randint(0, 4))]
    node = helper.make_node(schema.name, [], [], domain=schema.domain)
    graph = helper.make_graph([], "hostile", [], [])
    inputs: Inputs = []
    for index, formal in enumerate(_formal(draw, schema.inputs)):
        option = str(formal.option)
        if "Optional" in option and draw.random() < 0.4:
            node.input.append("")
            continue
        element = _element(draw, formal, types, chosen)
        own = (
            shape if draw.random() < 0.6 else [draw.choice(DIMS) for _ in range(draw.randint(0, 4))]
        )
        array = _array(draw, element, own)
        name = f"x{index}"
        node.input.append(name)
        if draw.random() < 0.25 and element != TensorProto.STRING:
            graph.initializer.append(numpy_helper.from_array(array, name))
        else:
            dims = own if draw.random() < 0.5 else None
            graph.input.append(helper.make_tensor_value_info(name, element, dims))
            inputs.append(array)
    for index, formal in enumerate(_formal(draw, schema.outputs)):
        if "Optional" in str(formal.option) and draw.random() < 0.5:
            node.output.append("")
            continue
        node.output.append(f"y{index}")
        element = _element(draw, formal, types, chosen)
        graph.output.append(helper.make_tensor_value_info(f"y{index}", element, None))
    for name, formal in sorted(schema.attributes.items()):
        kind = int(getattr(formal.type, "value", formal.type))
        if kind in (AttributeProto.GRAPH, AttributeProto.GRAPHS, AttributeProto.TYPE_PROTO):
            continue
        if formal.required or draw.random() < 0.4:
            item = _attribute(draw, name, kind)
            if kind == AttributeProto.INT and draw.random() < 0.6:
                item.i = draw.choice((0, 1, 2))
            node.attribute.append(item)
    if not graph.input:
        graph.input.append(helper.make_tensor_value_info("unused", TensorProto.FLOAT, [1]))
        inputs.append(np.zeros(1, np.float32))
    graph.node.append(node)
    newest = defs.onnx_opset_version()
    opsets = {"": newest if schema.domain else max(schema.since_version, 7)}
    if schema.domain:
        opsets[schema.domain] = schema.since_version
    imports = [helper.make_opsetid(*opset) for opset in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), inputs


def _formal(draw: random.Random, formals: Any) -> Iterator[Any]:
    for formal in formals:
        count = draw.choice((0, 1, 2, 2, 3)) if "Variadic" in str(formal.option) else 1
        yield from [formal] * count


def _element(draw: random.Random, formal: Any, types: Any, chosen: dict[str, int]) -> int:
    name = getattr(formal, "type_str", None) or formal.typeStr
    if name not in chosen:
        allowed = [t.removeprefix("tensor(").rstrip(")") for t in types.get(name, [name])]
        usable = [_ELEMENTS[t] for t in allowed if t in _ELEMENTS]
        chosen[name] = draw.choice(usable) if usable else TensorProto.FLOAT
    return chosen[name]


def _array(draw: random.Random, element: int, shape: list[int]) -> Any:
    source = np.random.default_rng(draw.getrandbits(32))
    if element == TensorProto.STRING:
        return np.array([draw.choice(TEXTS) for _ in range(int(np.prod(shape)))], object).reshape(
            shape
        )
    dtype = helper.tensor_dtype_to_np_dtype(element)
    if dtype.kind == "f":
        return source.standard_normal(shape).astype(dtype)
    if draw.random() < 0.2 and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return source.choice([limits.min, limits.max, 0, 1], shape).astype(dtype)
    return source.integers(0, 4, shape).astype(dtype)


# --------------------------------------------------------------------------------- running them


def _run(model: ModelProto, inputs: Inputs, path: Path) -> str:
    """Build and run one model; return its class of outcome."""
    import engine
    from engine.errors import EngineError

    path.write_bytes(model.SerializeToString())
    try:
        built = engine.load(path, target="cpu", threads=1)
    except EngineError as error:
        return f"refused: {type(error).__name__}"
    try:
        built.predict(inputs, timeout_s=TIME_S)
    except EngineError as error:
        return f"failed: {type(error).__name__}"
    finally:
        built.close()
    return "ran"


def main() -> None:
    """Run what the arguments say."""
    progress, seed, first, last = sys.argv[1], *map(int, sys.argv[2:5])
    is_microsoft = "--microsoft" in sys.argv
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    os.nice(10)
    warnings.simplefilter("ignore")
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder, open(progress, "r+b", buffering=0) as file:
        for number in range(first, last):
            file.seek(0)
            file.write(struct.pack("<q", number))
            outcome = _run(*model_of(number, seed, is_microsoft), Path(folder, "model.onnx"))
            counts[outcome] = counts.get(outcome, 0) + 1
        file.seek(0)
        file.write(struct.pack("<q", last))
    print(counts)


if __name__ == "__main__":
    main()
