"""Return names and declared types of the main graph's outputs."""

from __future__ import annotations

from typing import Any

from engine_mindir import constants, decode
from engine_mindir.messages import GraphProto
from engine_mindir.names import local
from engine_mindir.values import leaves


def titles_of(main: GraphProto, count: int) -> list[str]:
    """Return the outputs' names: of the file's output, or of the nodes that a tuple is made of."""
    if count == 1 and len(main.outputs) == 1:
        return [local(main.outputs[0].name)]
    nodes = {node.output: node for node in main.nodes}
    titles: list[str] = []
    worklist = [output.name for output in reversed(main.outputs)]
    steps = 0
    while worklist and steps < 100_000:
        steps += 1
        name = worklist.pop()
        node = nodes.get(name)
        kind = node.op_type.removeprefix("REF::").partition(":")[0] if node is not None else ""
        if node is not None and kind in ("Depend", "Return") and node.inputs:
            worklist.append(node.inputs[0])
        elif node is not None and kind in ("MakeTuple", "make_tuple", "MakeList", "make_list"):
            worklist += reversed(node.inputs)
        else:
            titles.append(local(name))
    if len(titles) == count:
        return titles
    base = local(main.outputs[0].name) if main.outputs else "output"
    return [f"{base}_{index}" for index in range(count)]


def declared(main: GraphProto) -> list[Any]:
    """Return the outputs' types as the file declares them, flat."""
    types: list[Any] = []
    for output in main.outputs:
        if output.tensors:
            types += [constants.tensor_type(tensor) for tensor in output.tensors]
        elif output.structure is not None:
            structure = decode.attribute(output.source, output.structure)
            types += leaves(constants.abstract(structure))
        else:
            types.append(None)
    return types
