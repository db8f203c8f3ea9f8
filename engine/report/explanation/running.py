"""Shapes that only a run tells: of values that depend on data, or that onnx has no rule for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import ModelProto, TensorProto, TypeProto, helper

from engine.formats import ModelFile, source_of_part
from engine.formats.opened import OpenedSource, state_of, variables_of
from engine.model import Model
from engine.model.build import from_model_file
from engine.model.model import model_state
from engine.model.recipe import Recipe
from engine.plan.extract import Whole
from engine.plan.partition import Segment
from engine.types import ModelSource
from engine.weights.compile_cache import without_cache


def shapes_by_running(
    source: ModelSource,
    names: Sequence[str],
    kinds: Mapping[str, TypeProto],
    recipe: Recipe,
    inputs: Mapping[str, Any],
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of values inside a model, in one run on these inputs.

    A model that gives nothing but shapes is built for it, as `recipe` has the whole built. kinds:
    the types of these values. Raises what building and running raise.
    """
    whole = Whole(source)
    nodes = _needed(whole, names)
    read = {name for index in nodes for name in whole.graph.nodes[index].reads}
    given = tuple(name for name in whole.graph.inputs if name in read)
    types = {**{value.name: value.type for value in whole.proto.graph.input}, **kinds}
    part = whole.part(Segment(0, tuple(nodes), given, tuple(names)), types)
    with Model() as model:
        file = ModelFile.of_part(_of_shapes(part, names))
        config = without_cache(recipe.config)
        from_model_file(model_state(model), file, recipe.context, config, None, None)
        held = {slot.name: slot.initial for slot in (*state_of(source), *variables_of(source))}
        values = {**held, **inputs}
        shapes = model.predict([values[spec.name] for spec in model.inputs])
        return {
            name: tuple(int(size) for size in shape.get_data_to_numpy())
            for name, shape in zip(names, shapes, strict=True)
        }


def _needed(whole: Whole, names: Sequence[str]) -> list[int]:
    """Return the nodes that make these values."""
    makers = {name: index for index, node in enumerate(whole.graph.nodes) for name in node.writes}
    pending, found = [*names], set[int]()
    while pending:
        index = makers.get(pending.pop())
        if index is not None and index not in found:
            found.add(index)
            pending += whole.graph.nodes[index].reads
    return sorted(found)


def _of_shapes(part: OpenedSource, names: Sequence[str]) -> OpenedSource:
    """Return a model that gives the shapes of another's outputs."""
    proto = ModelProto.FromString(part.data or b"")
    graph = proto.graph
    kinds = {value.name: value for value in graph.output}
    graph.value_info.extend(kinds[name] for name in names)
    del graph.output[:]
    for number, name in enumerate(names):
        shape = f"{name}/shape{number}"
        graph.node.add(op_type="Shape", input=[name], output=[shape])
        graph.output.append(helper.make_tensor_value_info(shape, TensorProto.INT64, [None]))
    return source_of_part(proto.SerializeToString(), part, part.folder)
