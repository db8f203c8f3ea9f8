"""Graphs that no pattern is made for keep their results: drawn for a pattern, and then changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, NodeProto, helper, numpy_helper
from rewrite_graphs import (
    DRAW,
    MODE,
    SPECIAL,
    Array,
    Random,
    model_of,
    node,
    rewritten,
    value_info,
)

import engine
from engine.errors import EngineError


def inner_values(model: ModelProto) -> list[str]:
    outputs = {output.name for output in model.graph.output}
    return [name for made in model.graph.node for name in made.output if name not in outputs]


def give_an_inner_value(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    names = inner_values(model)
    if names:
        model.graph.output.append(value_info(f"{random.choice(names)}:float[]"))


def read_in_a_subgraph(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    names = inner_values(model) or [model.graph.input[0].name]
    name = str(random.choice(names))
    branches = [
        helper.make_graph([node("Neg", [name], [f"{side}_out"])], side, [],
                          [value_info(f"{side}_out:float[]")])
        for side in ("then", "else")
    ]  # fmt: skip
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.append(
        node("If", ["yes"], ["chosen"], then_branch=branches[0], else_branch=branches[1])
    )
    model.graph.output.append(value_info("chosen:float[]"))


def share_constants(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    """Equal constants become one; so do those of one element with one that is not equal."""
    tensors = list(model.graph.initializer)
    names: dict[str, str] = {}
    for tensor in tensors:
        found = names.setdefault(str(numpy_helper.to_array(tensor).tolist()), tensor.name)
        if random.random() < 0.1:
            found = str(random.choice([one.name for one in tensors if one.dims == tensor.dims]))
        for made in model.graph.node:
            made.input[:] = [found if name == tensor.name else name for name in made.input]


def make_constants_of_nodes(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    tensors = list(model.graph.initializer)
    del model.graph.initializer[:]
    made = []
    for tensor in tensors:
        kind, name = random.integers(4), tensor.name
        if kind == 0:
            model.graph.initializer.append(tensor)
        elif kind == 1:
            made.append(node("Constant", [], [name], value=tensor))
        elif kind == 2:
            made += [node("Constant", [], [f"{name}_c"], value=tensor),
                     node("Identity", [f"{name}_c"], [name])]  # fmt: skip
        else:
            array = numpy_helper.to_array(tensor)
            shape = np.array(array.shape, np.int64)
            if shape.size:
                shape[random.integers(shape.size)] = -1
            flat = np.ascontiguousarray(array.reshape(-1))
            model.graph.initializer.append(numpy_helper.from_array(flat, f"{name}_f"))
            model.graph.initializer.append(numpy_helper.from_array(shape, f"{name}_s"))
            made.append(node("Reshape", [f"{name}_f", f"{name}_s"], [name]))
    nodes = [*made, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def give_constants(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    for tensor in model.graph.initializer:
        if random.random() < 0.5:
            model.graph.output.append(value_info(f"{tensor.name}:float[]"))


def change_types(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    dtype = np.dtype(random.choice(["float16", "float64"]))
    number = helper.np_dtype_to_tensor_dtype(dtype)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype),
                                                tensor.name))  # fmt: skip
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.elem_type = number
    for name in feeds:
        feeds[name] = feeds[name].astype(dtype)


def change_shapes_of_constants(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    for tensor in model.graph.initializer:
        if tensor.name in ("low", "high"):  # else no Clip
            continue
        array = numpy_helper.to_array(tensor)
        kind = random.integers(4)
        if kind == 0 and array.ndim < 4:
            array = array[(None,) * int(random.integers(1, 3))]
        elif kind == 1 and array.ndim < 4 and array.size:
            array = np.repeat(array.reshape(-1)[:1], int(random.integers(1, 9)))
            array = array.reshape(-1, *(1,) * int(random.integers(0, 3)))
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))


def open_all_sizes(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    """The model declares no size; the caller gives one channel, or no sample, or no column."""
    for info in model.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            dim.dim_param = f"{info.name}_{axis}"
    name = model.graph.input[0].name
    axis = int(random.integers(feeds[name].ndim))
    size = int(random.integers(2))
    feeds[name] = np.ascontiguousarray(np.take(feeds[name], range(size), axis))


def give_no_sample(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    name = model.graph.input[0].name
    feeds[name] = feeds[name][:0]


def give_special_values(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    for name, array in feeds.items():  # but those whose products overflow
        values = SPECIAL[~(np.abs(SPECIAL) > 1e38) | np.isinf(SPECIAL)]
        feeds[name] = random.choice(values, array.shape).astype(np.float32)


def list_constants_as_inputs(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    model.ir_version = int(random.choice([3, 4, 8]))
    for tensor in model.graph.initializer:
        if model.ir_version == 3 or random.random() < 0.7:
            model.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )


def write_for_another_opset(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    model.opset_import[0].version = int(random.choice([7, 8, 9, 10, 11, 13, 18, 20, 22]))


def write_twice(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    """The same nodes once more on the same values, which now have two readers."""
    inputs = {name for made in model.graph.node for name in made.output}
    for made in list(model.graph.node):
        again = NodeProto()
        again.CopyFrom(made)
        again.ClearField("name")
        again.input[:] = [f"{name}_2" if name in inputs else name for name in made.input]
        if random.random() < 0.5:  # on a value of the first
            again.input[:] = made.input
        again.output[:] = [f"{name}_2" for name in made.output]
        model.graph.node.append(again)
    model.graph.output.append(value_info("y_2:float[]"))


def write_behind_itself(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    """The same nodes once more on the result of the first."""
    first, made_names = model.graph.input[0].name, set()
    for made in list(model.graph.node):
        again = NodeProto()
        again.CopyFrom(made)
        again.ClearField("name")
        again.input[:] = [
            f"{name}_2" if name in made_names else "y" if name == first else name
            for name in made.input
        ]
        made_names |= set(made.output)
        again.output[:] = [f"{name}_2" for name in made.output]
        model.graph.node.append(again)
    model.graph.output[0].CopyFrom(value_info("y_2:float[]"))


def move_by_large_numbers(random: Random, model: ModelProto, feeds: dict[str, Array]) -> None:
    """Inputs around a large number, which a shift takes away."""
    far = float(random.choice([1e3, 1e5, 1e7]))
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.size == 1 or array.ndim == 3:
            tensor.CopyFrom(numpy_helper.from_array(array * np.float32(far), tensor.name))
    name = model.graph.input[0].name
    feeds[name] = np.float32(far) * random.choice([-1, 1]) + feeds[name]
    feeds[name] = feeds[name].astype(np.float32)


CHANGES = (
    give_an_inner_value, read_in_a_subgraph, share_constants, make_constants_of_nodes,
    give_constants, change_types, change_shapes_of_constants, open_all_sizes, give_no_sample,
    give_special_values, write_for_another_opset, write_twice, write_behind_itself,
    move_by_large_numbers, list_constants_as_inputs,
)  # fmt: skip


def results_of_all(path: Path, model: ModelProto, feeds: Mapping[str, Array]) -> Any:
    """ONNX Runtime's results, or None where it has an error; and the largest number inside."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    whole = ModelProto()
    whole.CopyFrom(model)
    names = [output.name for output in model.graph.output]
    whole.graph.output.extend(value_info(f"{name}:float[]") for name in inner_values(model))
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        results = session.run(names, feeds)
    except Exception:  # ONNX Runtime's own have no common base
        return None, 1.0
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    largest = 1.0
    try:
        session = ort.InferenceSession(whole.SerializeToString(), options, ["CPUExecutionProvider"])
        inner = session.run(None, feeds)
    except Exception:  # an inner value of another type
        inner = results
    for array in inner:
        sizes = np.abs(np.asarray(array, np.float64))
        largest = max(largest, sizes[np.isfinite(sizes)].max(initial=0))
    return results, largest


def check_changed(path: Path, name: str, random: Random) -> bool:
    """Compare one changed graph; return whether it was rewritten."""
    changes = sorted(random.choice(len(CHANGES), int(random.integers(1, 3)), replace=False))
    said = [CHANGES[i].__name__ for i in changes]
    model, feeds = model_of(DRAW[name](random, False))
    for i in changes:
        with np.errstate(over="ignore", invalid="ignore"):
            CHANGES[i](random, model, feeds)
    path.write_bytes(model.SerializeToString())
    expected, largest = results_of_all(path, model, feeds)
    config = {"cpu_context": {"rewrites": MODE[name], "measure_rewrites": "0"}}
    try:
        own = engine.load(path, target="cpu", config=config)
        found = own(**{spec.name: feeds[spec.name] for spec in own.inputs})
    except EngineError:
        assert expected is None, said
        return False
    if expected is None:  # of what ONNX Runtime refuses and this package does not
        assert not rewritten(own), said
        return False
    exact = MODE[name] == "exact" or not rewritten(own)
    for output, wanted in zip(own.outputs, expected, strict=True):
        result = np.asarray(found[output.name])
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype), said
        if exact:
            assert result.tobytes() == wanted.tobytes(), said
            continue
        wide, wanted = result.astype(np.float64), wanted.astype(np.float64)
        same = np.isnan(wide) & np.isnan(wanted) | (wide == wanted)
        with np.errstate(invalid="ignore"):
            near = np.abs(wide - wanted) <= 1e-5 * largest
        assert (same | near).all(), said
    return bool(rewritten(own))


@pytest.mark.parametrize("name", DRAW)
def test_graphs_that_no_pattern_is_made_for_keep_their_results(tmp_path: Path, name: str) -> None:
    random = np.random.default_rng(11)
    count = sum(check_changed(tmp_path / "model.onnx", name, random) for _ in range(30))
    assert count > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAW)
def test_a_thousand_graphs_that_no_pattern_is_made_for(tmp_path: Path, name: str) -> None:
    random = np.random.default_rng(12)
    assert sum(check_changed(tmp_path / "model.onnx", name, random) for _ in range(1000)) > 200
