"""Write .mindir files of models that are compiled for Ascend, as MindSpore Lite's converter does.

By hand, from what its sources say (engine_mindir/compiled.py): no such file was at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine_testing.encode import field, many

INT32, STRING, BOOL, TUPLE = 6, 8, 9, 20
UINT8 = 2

Names = Sequence[str]


def attribute(name: str, value: Any) -> bytes:
    """Encode an attribute as mindir_exporter.cc does: lists, numbers and names in them."""
    return field(1, name) + _value(value, is_item=False)


def _value(value: Any, is_item: bool) -> bytes:
    if isinstance(value, str):
        return field(16, STRING) + field(11 if is_item else 5, value)
    if isinstance(value, bool):
        return field(16, BOOL) + field(10 if is_item else 3, int(value))
    if isinstance(value, int):
        return field(16, INT32) + field(10 if is_item else 3, value)
    return field(16, TUPLE) + many(17, [_value(item, is_item=True) for item in value])


def bundle_attributes(
    graphs: Sequence[tuple[Names, Names]],
    executors: Sequence[tuple[int, int, Names, Names]],
    inputs: Names,
) -> dict[str, Any]:
    """Return the attributes of a graph that was split, as graph_split_pass.cc records them.

    graphs: the inputs and outputs of each. executors: of each, the first and the last graph, and
    its inputs and outputs. inputs: of the whole.
    """
    return {
        "subgraph_input_names": [list(taken) for taken, _ in graphs],
        "subgraph_output_names": [list(given) for _, given in graphs],
        "graph_input_names": list(inputs),
        "subgraph_infer_path": [[first, last] for first, last, _, _ in executors],
        "extended_subgraph_input_output": [
            [list(taken), list(given)] for _, _, taken, given in executors
        ],
    }


def compiled_mindir(
    oms: Sequence[bytes], inputs: Names = ("x",), attributes: Mapping[str, Any] | None = None
) -> bytes:
    """Return a .mindir with an .om file in each of its nodes.

    inputs: of the graph, all float32 of one open axis: an .om file says the sizes. attributes: of
    the graph; those that bundle_attributes gives for one that was split.
    """
    graph = field(2, "net")
    names = [f"net:{name}" for name in inputs]
    last: list[str] = []
    for number, _ in enumerate(oms):
        # Every node but the first has one input more behind the .om file.
        taken = [*names, f"net:ACL_om_data_{number}", *last]
        last = [f"net:CNode_{number}"]
        graph += field(1, _node(f"REF::Custom:{number}", taken, last[0]))
    graph += many(3, [_parameter(f"net:ACL_om_data_{n}", om) for n, om in enumerate(oms)])
    graph += many(5, [_input(name) for name in names])
    graph += field(6, field(1, last[0]) + field(2, _tensor("y", [-1], 1)))
    graph += many(8, [attribute(name, value) for name, value in (attributes or {}).items()])
    return b"".join(
        (
            field(1, "1.0"), field(2, "MindSpore"), field(5, "2.7.1"), field(7, graph),
            field(10, 1), many(12, [_primitive(number) for number, _ in enumerate(oms)]),
            field(13, 3),
        )
    )  # fmt: skip


def _node(op_type: str, inputs: Names, output: str) -> bytes:
    name = output.partition(":")[2]
    return many(1, inputs) + field(2, output) + field(3, name) + field(4, op_type)


def _primitive(number: int) -> bytes:
    said = {"uniq_name": "CustomAscend", "func_type": "acl_build", "type": "ACL"}
    told = many(3, [attribute(name, value) for name, value in said.items()])
    return field(1, f"Custom:{number}") + field(2, "Custom") + told + field(5, 1)


def _input(name: str) -> bytes:
    return field(1, name) + field(2, _tensor(name, [-1], 1))


def _parameter(name: str, data: bytes) -> bytes:
    return _tensor(name, [len(data)], UINT8) + field(9, data)


def _tensor(name: str, dims: Sequence[int], dtype: int) -> bytes:
    return many(1, dims) + field(2, dtype) + field(7, name)
