"""Indices of slices and tensors where sizes are open, against numpy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

_OPEN = np.arange(24, dtype=np.float32).reshape(4, 3, 2)


@pytest.mark.parametrize(
    ("kinds", "parts", "wanted"),
    [
        ((15, 17), ((1, None), [0, 2]), _OPEN[1:, [0, 2]]),
        ((15, 17), ((None, -1), [-1, 0]), _OPEN[:-1, [-1, 0]]),
        ((17, 15, 17), ([3, 0], (None, None), [1, 1]), _OPEN[[3, 0], :, [1, 1]]),
        ((17, 17), ([3, 0], [[2], [1]]), _OPEN[[3, 0], [[2], [1]]]),
        ((9, 17), (..., [1]), _OPEN[..., [1]]),
        ((17, 9, 17), ([2, 1], ..., [0, 1]), _OPEN[[2, 1], ..., [0, 1]]),
    ],
    ids=["after", "before", "apart", "together", "dots", "dots between"],
)
def test_an_index_of_slices_and_tensors_is_worked_out_where_sizes_are_open(
    mindir: SimpleNamespace, kinds: tuple[int, ...], parts: tuple[Any, ...], wanted: Any
) -> None:
    """x[parts] as MindSpore says it: places of each part, broadcast together, for one GatherNd."""
    node, constant, scalar = mindir.node, mindir.constant, mindir.scalar
    types = scalar("tuple_index_types", (*kinds, *(0,) * (8 - len(kinds))))
    rank, nodes, primitives = _OPEN.ndim, [], []
    last = constant("last", -1)
    own: dict[int, str] = {}
    dots: list[str] = []

    def add(kind: str, inputs: list[str], *attributes: bytes) -> str:
        name = f"n{len(primitives)}"
        primitives.append(mindir.primitive(f"{kind}:{name}", kind, *attributes))
        nodes.append(node(f"REF::{kind}:{name}", inputs, name))
        return name

    def number(item: Any) -> str:
        name = f"c{len(nodes)}"
        nodes.append(constant(name, item))
        return name

    def item(of: str, at: int) -> str:
        return add("TupleGetItem", [of, number(at)])

    for at, part in enumerate(parts):
        where = scalar("tuple_index_axis", at)
        if part is ...:
            index = scalar("origin_index_type", "ellipsis_index")
            dots = [
                add("NormalizeTupleIndex", ["x", number(0)], types, index,
                    scalar("tuple_index_axis", each))
                for each in range(rank - len(parts) + 1)
            ]  # fmt: skip
        elif isinstance(part, tuple):
            ends = [number(end or 0) for end in (*part, 1)]
            by_none = scalar("init_by_none", (*(int(end is None) for end in part), 0))
            own[at] = item(add("SliceToIndices", ["x", *ends], types, where, by_none), 0)
        else:
            ids = number(np.array(part, np.int64))
            index = scalar("origin_index_type", "tensor_index")
            own[at] = add("NormalizeTupleIndex", ["x", ids], types, where, index)
    info = add("GetTupleIndexInfo", ["x", number(0), *own.values(), *dots], types)
    slices = 4
    columns: dict[Any, str] = {}
    for key, name in [*own.items(), *enumerate(dots, 100)]:
        if key in own and kinds[key] == 17:
            shape = item(info, 2)
            name = add("BroadcastTo", [name, item(info, 1)])
        else:
            shape = item(info, slices)
            slices += 1
        wide = add("BroadcastTo", [add("Reshape", [name, shape]), item(info, 3)])
        columns[key] = add("ExpandDims", [wide, "last"])
    order = [
        name
        for at, part in enumerate(parts)
        for name in (
            [columns[key] for key in columns if key >= 100] if part is ... else [columns[at]]
        )
    ]
    together = add("Concat", [add("MakeTuple", order), "last"])
    nodes.append(node("GatherNd", ["x", together], "z", mindir.typed(*wanted.shape)))
    [found] = mindir.run(
        mindir.net(
            [last, *nodes], {"x": (-1, -1, -1)}, {"z": (*wanted.shape,)}, primitives=primitives
        ),
        _OPEN,
    )
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("start", "stop", "empty"), [(0, -1, 0), (-2, 9, 0), (4, 2, 1)])
def test_an_assignment_to_a_slice_knows_its_places_and_whether_there_are_any(
    mindir: SimpleNamespace, start: int, stop: int, empty: int
) -> None:
    node, constant = mindir.node, mindir.constant
    attributes = (mindir.scalar("tuple_index_types", ()), mindir.scalar("init_by_none", (0, 0, 0)))
    nodes = [
        constant("start", start), constant("stop", stop), constant("step", 1),
        node("REF::S", ["x", "start", "stop", "step"], "s"),
        *(constant(f"at{at}", at) for at in (0, 5)),
        *(node("REF::TupleGetItem", ["s", f"at{at}"], f"part{at}") for at in (0, 5)),
        node("REF::ScalarToTensor", ["part5"], "none", mindir.typed(data_type=7)),
    ]  # fmt: skip
    outputs = [mindir.value("part0", -1, 1, data_type=7), mindir.value("none", data_type=7)]
    data = mindir.net(
        nodes,
        {"x": (-1, 2)},
        outputs,
        primitives=[
            mindir.primitive("S", "SliceToIndices", *attributes),
            mindir.primitive("TupleGetItem", "TupleGetItem"),
            mindir.primitive("ScalarToTensor", "ScalarToTensor"),
        ],
    )
    places, none = mindir.run(data, np.zeros((5, 2), np.float32))
    np.testing.assert_array_equal(places[:, 0], np.arange(5)[start:stop])
    assert none == empty
