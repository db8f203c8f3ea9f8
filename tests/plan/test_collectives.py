"""Collectives: one order on every rank, none dropped, and what ranks compare when they join."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.distributed.sequence import between, difference, of_group, sequence
from engine.plan.partition import Graph, Node, Segment, graph_of, live, partition, reachable
from engine.types import Attribute, DType, GraphInfo, NodeInfo, TensorSpec


def order(graph: Graph, segments: Sequence[Segment]) -> list[int]:
    """Return the collectives of a partition, by their place in the file, in running order."""
    indices = [index for segment in segments for index in segment.nodes]
    return [index for index in indices if graph.nodes[index].is_collective]


def check_runs(graph: Graph, segments: Sequence[Segment]) -> None:
    """Assert that every segment has what it reads, and that its nodes stand in the file's order."""
    known = {*graph.inputs, *graph.constants}
    for segment in segments:
        assert {*segment.inputs} <= known
        assert [*segment.nodes] == sorted(segment.nodes)
        inside = {*segment.inputs, *graph.constants}
        for index in segment.nodes:
            assert graph.nodes[index].reads <= inside
            inside.update(graph.nodes[index].writes)
        known.update(segment.outputs)


def graph(*nodes: str) -> Graph:
    """A graph of x and y; nodes as "what it makes = what it reads", a collective begins with !."""
    made = []
    for text in nodes:
        writes, _, reads = text.removeprefix("!").partition("=")
        made.append(Node(frozenset(reads.split()), tuple(writes.split()), text.startswith("!")))
    return Graph(tuple(made), ("x",), ("y",), frozenset())


def test_more_local_nodes_on_one_rank_do_not_change_the_order() -> None:
    """C, A, B in the file of both ranks; rank 0 has two nodes more, which made it C, B, A."""
    rank_0 = graph("!c = x", "p = x", "q = p", "!a = q", "!b = c", "y = a b c")
    rank_1 = graph("!c = x", "!a = x", "!b = c", "y = a b c")
    assert order(rank_0, partition(rank_0, [1, 0, 0, 1, 1, 0])) == [0, 3, 4]
    assert order(rank_1, partition(rank_1, [1, 1, 1, 0])) == [0, 1, 2]


def test_a_send_whose_result_nobody_reads_runs() -> None:
    whole = graph("a = x", "!sent = a", "unread = x", "y = x", "!")
    assert live(whole) == [0, 1, 3, 4]
    assert reachable(whole) == {"x", "a", "y"}
    segments = partition(whole, [0, 1, 0, 0, 1])
    assert order(whole, segments) == [1, 4]
    [sending] = [segment for segment in segments if 1 in segment.nodes]
    assert "sent" in sending.outputs, "its backend would drop what nobody asks for"
    alone = partition(whole, [0, 0, 0, 0, 1])
    assert alone[-1] == Segment(1, (4,), (), ())


def rank(
    random_: random.Random, count: int, locals_: int, levels: int
) -> tuple[Graph, list[int], list[int]]:
    """Return a graph with `count` collectives among local nodes, its levels, their indices.

    Everything may read everything before it; what nobody reads may be an output, or not.
    """
    kinds = [True] * count + [False] * locals_
    random_.shuffle(kinds)
    names = ["x"]
    nodes, chosen = [], []
    for index, is_collective in enumerate(kinds):
        reads = frozenset(random_.sample(names, random_.randint(1, min(3, len(names)))))
        nodes.append(Node(reads, (f"v{index}",), is_collective))
        chosen.append(1 if is_collective else random_.randrange(levels))
        names.append(f"v{index}")
    outputs = tuple(random_.sample(names[1:], random_.randint(1, min(2, len(names) - 1))))
    whole = Graph(tuple(nodes), ("x",), outputs, frozenset())
    return whole, chosen, [index for index, kind in enumerate(kinds) if kind]


def test_pairs_of_ranks_agree_on_the_order() -> None:
    random_ = random.Random(10)
    for _ in range(500):
        count = random_.randint(1, 8)
        for locals_ in (random_.randint(0, 4), random_.randint(5, 25)):
            whole, levels, collectives = rank(random_, count, locals_, random_.randint(1, 3))
            segments = partition(whole, levels)
            # The n-th collective of one rank meets the n-th of the other: all, in the file's order.
            assert order(whole, segments) == collectives
            check_runs(whole, segments)


def info(*nodes: tuple[str, str, str, dict[str, Attribute]]) -> GraphInfo:
    return GraphInfo(
        name="rank",
        inputs=(TensorSpec("x", DType.FLOAT32, ("n", 4)),),
        outputs=(TensorSpec("y", DType.FLOAT16, (2,)),),
        nodes=tuple(
            NodeInfo(
                index=index,
                name=f"node{index}",
                op_type=op,
                domain="" if op in ("Relu", "If") else "com.microsoft",
                inputs=tuple(reads.split()),
                outputs=tuple(writes.split()),
                attributes=attributes,
            )
            for index, (op, reads, writes, attributes) in enumerate(nodes)
        ),
        parameters=(),
        opsets={"": 17, "com.microsoft": 1},
        ir_version=8,
    )


SENDER = info(
    ("AllReduce", "x", "a", {"reduction": "sum", "group": "", "group_ranks": (0, 1)}),
    ("Relu", "a", "b", {}),
    ("Send", "b", "sent", {"rank": 1, "tag": 3, "group": ""}),
    ("AllGather", "b", "y", {"group": "pair", "axis": 0}),
)
RECEIVER = info(
    ("AllReduce", "x", "a", {"reduction": "sum", "group": "", "group_ranks": (0, 1)}),
    ("Receive", "", "r", {"rank": 0, "tag": 3, "group": "", "to": 1, "sizes": (2, 4)}),
    ("AllGather", "r", "y", {"group": "pair", "axis": 0}),
)


def test_a_sequence_says_op_group_dtype_shape_and_attributes() -> None:
    reduce, send, gather = sequence(SENDER)
    assert (reduce.op, reduce.group, reduce.dtype, reduce.shape) == (
        "AllReduce", "", "float32", ("n", 4),
    )  # fmt: skip
    assert reduce.attributes == (("group_ranks", (0, 1)), ("reduction", "sum"))
    assert (send.op, send.peer, send.dtype, send.shape) == ("Send", 1, "", None)
    assert (gather.op, gather.group, gather.dtype, gather.shape) == (
        "AllGather", "pair", "float16", (2,),
    )  # fmt: skip
    _, receive, _ = sequence(RECEIVER)
    assert (receive.peer, receive.dtype, receive.shape) == (0, "float32", (2, 4))
    known = {"b": TensorSpec("b", DType.FLOAT32, (2, 4))}
    assert sequence(SENDER, known)[1].shape == (2, 4)


def test_what_a_group_does_together_is_equal_on_its_ranks() -> None:
    ours, theirs = sequence(SENDER), sequence(RECEIVER)
    for group in ("", "pair"):
        assert tuple(of_group(ours, group)) == tuple(of_group(theirs, group))
    assert tuple(ours) != tuple(theirs)
    swapped = (ours[2], ours[1], ours[0])
    assert tuple(ours) != tuple(swapped)


def test_what_two_ranks_send_each_other_fits() -> None:
    known = {"b": TensorSpec("b", DType.FLOAT32, (2, 4))}
    ours = between(sequence(SENDER, known), 0, 1)
    theirs = between(sequence(RECEIVER), 1, 0)
    assert [collective.op for collective in ours] == ["Send"]
    assert tuple(ours) == tuple(theirs)
    assert difference(between(sequence(SENDER), 0, 1), theirs) == "", (
        "what is open is no difference"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"op": "Barrier"}, "collective 0 is AllReduce.* here, but Barrier.* there"),
        ({"group": "other"}, "collective 0"),
        ({"dtype": "float64"}, "float32.* here, but .*float64"),
        ({"shape": (3, 5)}, r"\('n', 4\).*\(3, 5\)"),
        ({"attributes": (("reduction", "max"),)}, "reduction='max'"),
    ],
)
def test_a_difference_is_named(change: dict[str, object], said: str) -> None:
    ours = of_group(sequence(SENDER), "")
    theirs = (replace(ours[0], **change),)  # type: ignore[arg-type]
    assert re.search(said, difference(ours, theirs))
    assert tuple(ours) != tuple(theirs)
    assert difference(ours, ()) == "1 collectives here, but 0 there"


def test_symbolic_dims_of_two_files_need_not_have_one_name() -> None:
    ours = of_group(sequence(SENDER), "")
    assert difference(ours, (replace(ours[0], shape=("batch", 4)),)) == ""
    assert difference(ours, (replace(ours[0], shape=(7, 4)),)) == ""


def test_the_graph_of_a_file_marks_its_collectives() -> None:
    graph = graph_of(SENDER)
    assert [node.is_collective for node in graph.nodes] == [True, False, True, True]
    assert live(graph) == [0, 1, 2, 3]
