"""Parse names of a .mindir: local names, unique names, and the primitive that a node names."""

from __future__ import annotations

from engine_mindir.messages import ModelProto, PrimitiveProto


def local(name: str) -> str:
    """Return a name without the graph's prefix."""
    head, colon, rest = name.partition(":")
    return rest if colon and rest else head


def unique(name: str, names: dict[str, int]) -> str:
    """Return the name, or that with a number where it is taken; then taken.

    Names that begin or end with "%" are those of values that are made here.
    names: those taken, each with the number that the next of that name gets.
    """
    name = name or "value"
    if name[0] == "%" or name[-1] == "%":
        name = f"_{name}_"
    candidate, number = name, names.get(name, 0)
    while candidate in names:
        number += 1
        candidate = f"{name}_{number}"
    names[candidate] = 0
    if number:
        names[name] = number
    return candidate


def primitive_named(model: ModelProto, op_type: str) -> tuple[str, PrimitiveProto | None]:
    """Return the primitive that a node names, in any dialect, and the file's entry of it or None.

    "" where a reference is to nothing of the file: what is called is another value then.
    """
    key = op_type.removeprefix("REF::")
    row = model.primitives.get(key)
    if row is not None:
        return row.op_type.removeprefix("S-Prim-"), row
    for prefix in ("MetaFuncGraph::", "ClassType::"):
        if key.startswith(prefix):
            return key.removeprefix(prefix), None
    if op_type.startswith("REF::"):
        return "", None
    return key.removeprefix("S-Prim-").rpartition("::")[2], None


def primitives_of(model: ModelProto) -> set[str]:
    """Return the primitives that the nodes of the file name."""
    graphs = [node for node in (model.graph, *model.functions.values()) if node is not None]
    op_types = {node.op_type for graph in graphs for node in graph.nodes}
    return {primitive_named(model, op_type)[0] for op_type in op_types}
