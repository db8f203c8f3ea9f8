"""Cutting is right for any graph, and for two backends no cut has fewer segments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.plan.partition import Graph, Node, Segment, partition


def graph(
    *nodes: tuple[str, str], inputs: str = "x", outputs: str = "y", constants: str = ""
) -> Graph:
    """Nodes as ("what it reads", "what it writes"), each name a word."""
    return Graph(
        tuple(Node(frozenset(reads.split()), tuple(writes.split())) for reads, writes in nodes),
        tuple(inputs.split()),
        tuple(outputs.split()),
        frozenset(constants.split()),
    )


def chain(levels: Sequence[int]) -> Graph:
    names = ["x", *(f"v{i}" for i in range(1, len(levels))), "y"]
    return graph(*itertools.pairwise(names))


def test_a_chain_of_200_nodes_with_10_of_another_level_has_21_segments() -> None:
    levels = [int(i % 20 == 10) for i in range(200)]
    segments = partition(chain(levels), levels)
    assert len(segments) == 21
    assert [len(each.nodes) for each in segments] == [10, 1, *[19, 1] * 9, 9]
    # Each tensor that crosses leaves one segment and enters the next, and no other does.
    assert [each.inputs for each in segments[1:]] == [each.outputs for each in segments[:-1]]
    assert all(len(each.inputs) == len(each.outputs) == 1 for each in segments)


def test_the_level_to_begin_with_is_the_one_that_saves_a_segment() -> None:
    nodes = [("x", "a"), ("x", "b"), ("b", "c"), ("a c", "y")]
    assert partition(graph(*nodes), [0, 1, 0, 0]) == [
        Segment(1, (1,), ("x",), ("b",)),
        Segment(0, (0, 2, 3), ("x", "b"), ("y",)),
    ]


def test_a_tensor_that_many_nodes_read_leaves_and_enters_once() -> None:
    nodes = [("x", "a"), ("a", "b"), ("a", "c"), ("a", "d"), ("b c d", "y")]
    assert partition(graph(*nodes), [0, 1, 1, 1, 1]) == [
        Segment(0, (0,), ("x",), ("a",)),
        Segment(1, (1, 2, 3, 4), ("a",), ("y",)),
    ]


def test_a_constant_node_stands_in_every_segment_that_reads_it() -> None:
    nodes = [("", "k"), ("x k", "a"), ("a k", "b"), ("b k", "y")]
    assert partition(graph(*nodes), [0, 0, 1, 0], copied={0}) == [
        Segment(0, (0, 1), ("x",), ("a",)),
        Segment(1, (0, 2), ("a",), ("b",)),
        Segment(0, (0, 3), ("b",), ("y",)),
    ]
    # Not copied, it is a node like others.
    assert partition(graph(*nodes), [0, 0, 1, 0])[0] == Segment(0, (0, 1), ("x",), ("k", "a"))


def test_initializers_do_not_cross() -> None:
    nodes = [("x w", "a"), ("a w", "y")]
    segments = partition(graph(*nodes, constants="w", outputs="y w"), [0, 1])
    assert segments == [
        Segment(0, (0,), ("x",), ("a", "w")),  # the output that nobody computes
        Segment(1, (1,), ("a",), ("y",)),
    ]


def test_nodes_that_no_output_depends_on_go_nowhere() -> None:
    nodes = [("x", "a"), ("x", "unread"), ("unread", "neither"), ("a", "y")]
    assert partition(graph(*nodes), [0, 1, 0, 0]) == [Segment(0, (0, 3), ("x",), ("y",))]


def test_outputs_that_are_inputs_need_no_segment() -> None:
    assert partition(graph(("x", "unread"), outputs="x"), [1]) == []


def test_outputs_that_are_constants_are_made_somewhere() -> None:
    assert partition(graph(("", "k"), outputs="k"), [0], copied={0}) == [
        Segment(0, (0,), (), ("k",))
    ]


@st.composite
def graphs(draw: st.DrawFn, most: int = 24, levels: int = 3) -> tuple[Graph, list[int], set[int]]:
    """Any graph in running order, the level of each node, and which constant nodes are copied."""
    count = draw(st.integers(1, most))
    made = ["x", "w"]
    nodes = []
    copied = set()
    for index in range(count):
        reads = draw(st.lists(st.sampled_from(made), max_size=3))
        writes = [f"v{index}", *([f"u{index}"] if draw(st.booleans()) else [])]
        if not reads and draw(st.booleans()):
            copied.add(index)
            writes = writes[:1]
        nodes.append((" ".join(reads), " ".join(writes)))
        made += writes
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=4, unique=True))
    found = graph(*nodes, inputs="x", constants="w", outputs=" ".join(outputs))
    return found, [draw(st.integers(0, levels - 1)) for _ in nodes], copied


@settings(max_examples=60)
@given(graphs())
def test_segments_run_every_node_that_counts_once_and_find_what_they_read(
    drawn: tuple[Graph, list[int], set[int]],
) -> None:
    whole, levels, copied = drawn
    known = {"x"}
    ran: list[int] = []
    for segment in partition(whole, levels, copied):
        assert known.issuperset(segment.inputs)
        inside = {*segment.inputs, "w"}
        for index in segment.nodes:
            assert index in copied or levels[index] == segment.level
            assert inside.issuperset(whole.nodes[index].reads)
            inside.update(whole.nodes[index].writes)
        assert segment.outputs
        assert inside.issuperset(segment.outputs)
        assert len({*segment.inputs, *segment.outputs}) == len(segment.inputs + segment.outputs)
        known.update(segment.outputs)
        ran += [index for index in segment.nodes if index not in copied]
    assert known.issuperset(whole.outputs)
    assert len(ran) == len({*ran})


@settings(max_examples=60)
@given(graphs(most=7, levels=2))
def test_no_order_of_two_levels_has_fewer_segments(
    drawn: tuple[Graph, list[int], set[int]],
) -> None:
    whole, levels, copied = drawn
    segments = [each for each in partition(whole, levels, copied) if {*each.nodes} - copied]
    nodes = {index for each in segments for index in each.nodes} - copied
    assert len(segments) == fewest(whole, levels, nodes)


def fewest(whole: Graph, levels: list[int], nodes: set[int]) -> int:
    """Return the least number of level changes over all orders in which the nodes can run."""
    needs = {
        index: {other for other in nodes if {*whole.nodes[other].writes} & whole.nodes[index].reads}
        for index in nodes
    }
    reached = {(frozenset[int](), -1): 0}
    for _ in nodes:
        after: dict[tuple[frozenset[int], int], int] = {}
        for (done, level), count in reached.items():
            for index in nodes - done:
                if needs[index] <= done:
                    key = (done | {index}, levels[index])
                    total = count + (levels[index] != level)
                    after[key] = min(total, after.get(key, total))
        reached = after
    return min(reached.values())
