"""Tensors that a loop changes in place: each round sees the one before, or the file is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from engine.errors import ModelError
from engine.formats import source_from_bytes

INT64 = 7


def _loop(
    m: SimpleNamespace,
    arguments: list[str],
    body: list[bytes],
    jump: list[str],
    after: tuple[bytes, ...] = (),
) -> bytes:
    """A model of h = 2 x, and then three rounds of `body`, which gets i and a; it gives a as y.

    arguments: of the loop's header in the main graph, i and a first. jump: what the body passes on.
    after: nodes that follow in the main graph; they read y as G:r then.
    """
    names = ["i", "a", "b"][: len(arguments)]

    def parameters(function: str) -> list[bytes]:
        kinds = [m.value(f"{function}:i", data_type=INT64)]
        return kinds + [m.value(f"{function}:{name}", 2) for name in names[1:]]

    def own(function: str) -> list[str]:
        return [f"{function}:{name}" for name in names]

    scalar = m.typed(data_type=INT64)
    header = [
        m.node("LessScalar", ["H:i", "three"], "H:more", m.typed(data_type=9)),
        m.node("Partial", ["B", *own("H")], "H:then"),
        m.node("Partial", ["E", *own("H")], "H:else"),
        m.node("Switch", ["H:more", "H:then", "H:else"], "H:next"),
        m.node("REF::H:next", [], "H:out"),
    ]
    step = m.node("Add", ["B:i", "one"], "B:j", scalar)
    functions = [
        m.graph("H", header, parameters("H"), [m.value("H:out", 2)]),
        m.graph(
            "B", [*body, step, m.node("REF::H", ["B:j", *jump], "B:out")], parameters("B"),
            [m.value("B:out", 2)],
        ),
        m.graph("E", [], parameters("E"), [m.value("E:a", 2)]),
    ]  # fmt: skip
    nodes = [
        m.constant("three", 3), m.constant("one", np.array(1)), m.constant("two", 2.0),
        m.node("ReduceMax", ["G:n"], "G:i", scalar),
        m.node("Muls", ["G:x", "two"], "h", m.typed(2)),
        m.node("REF::H", arguments, "G:r" if after else "G:y"),
        *after,
    ]  # fmt: skip
    return bytes(
        m.net(
            nodes,
            [m.value("G:x", 2), m.value("G:n", 1, data_type=INT64)],
            {"G:y": (2,)},
            functions=functions,
        )
    )


def _run(m: SimpleNamespace, data: bytes) -> list[float]:
    [y] = m.run(data, np.array([1, -2], np.float32), np.zeros(1, np.int64))
    return [float(number) for number in y]


def test_a_loop_that_passes_its_tensor_on_counts_in_place(mindir: SimpleNamespace) -> None:
    body = [mindir.node("InplaceAddExt", ["B:a", "G:x"], "B:c", mindir.typed(2))]
    assert _run(mindir, _loop(mindir, ["G:i", "h"], body, ["B:c"])) == [5.0, -10.0]  # 2 x + 3 x


def test_a_loop_that_passes_the_tensors_old_name_on_is_refused(mindir: SimpleNamespace) -> None:
    body = [mindir.node("InplaceAddExt", ["B:a", "G:x"], "B:c", mindir.typed(2))]
    with pytest.raises(ModelError, match="a branch or a loop has changed in place is used after"):
        source_from_bytes(_loop(mindir, ["G:i", "h"], body, ["B:a"]))


def test_a_loop_that_changes_a_tensor_from_outside_is_refused(mindir: SimpleNamespace) -> None:
    body = [
        mindir.node("Add", ["B:a", "h"], "B:c", mindir.typed(2)),
        mindir.node("InplaceAddExt", ["h", "G:x"], "B:d", mindir.typed(2)),
    ]
    with pytest.raises(ModelError, match="that it does not pass on to its next iteration"):
        source_from_bytes(_loop(mindir, ["G:i", "G:x"], body, ["B:c"]))


def test_a_tensor_that_a_loop_has_under_two_names_is_not_changed_in_place(
    mindir: SimpleNamespace,
) -> None:
    body = [
        mindir.node("Add", ["B:a", "G:x"], "B:c", mindir.typed(2)),
        mindir.node("InplaceAddExt", ["B:b", "G:x"], "B:d", mindir.typed(2)),
    ]
    with pytest.raises(ModelError, match="under two names"):
        source_from_bytes(_loop(mindir, ["G:i", "h", "h"], body, ["B:c", "B:d"]))


def test_a_tensor_that_a_loop_has_changed_is_not_read_after_it(mindir: SimpleNamespace) -> None:
    body = [mindir.node("InplaceAddExt", ["B:a", "G:x"], "B:c", mindir.typed(2))]
    again = mindir.node("Add", ["G:r", "h"], "G:y", mindir.typed(2))
    with pytest.raises(ModelError, match="a branch or a loop has changed in place is used after"):
        source_from_bytes(_loop(mindir, ["G:i", "h"], body, ["B:c"], (again,)))
    other = mindir.node("Add", ["G:r", "G:x"], "G:y", mindir.typed(2))
    assert _run(mindir, _loop(mindir, ["G:i", "h"], body, ["B:c"], (other,))) == [6.0, -12.0]


def test_a_slice_that_runs_backwards_over_an_open_axis_is_refused(mindir: SimpleNamespace) -> None:
    settings = [
        mindir.scalar("tuple_index_axis", 0), mindir.scalar("tuple_index_types", ()),
        mindir.scalar("init_by_none", (1, 1, 0)),
    ]  # fmt: skip
    nodes = [
        mindir.constant("zero", 0),
        mindir.constant("step", -1),
        mindir.node("SliceToIndices", ["G:x", "zero", "zero", "step"], "G:t", *settings),
        mindir.node("TupleGetItem", ["G:t", "zero"], "G:y"),
    ]
    with pytest.raises(ModelError, match="a slice with step -1 of a tensor whose sizes are open"):
        source_from_bytes(mindir.net(nodes, {"G:x": (-1,)}, {"G:y": (-1,)}))
