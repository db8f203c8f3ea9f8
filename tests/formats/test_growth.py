"""A file of a million small parts costs time and memory in proportion to its size.

Each case is one of the repeated fields of ONNX, with as many elements as fit into so many bytes:
empty ones, and the smallest that are in order. Reading one ends in an error or in a model.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from pathlib import Path

import pytest

from engine import formats
from engine.errors import ModelError
from engine_testing.encode import (
    attribute,
    chain,
    field,
    graph,
    many,
    model,
    node,
    opset,
    tensor,
    type_of,
    value,
)

X, Y = value("x"), value("y")
NEG = node("Neg", ["x"], ["y"])


def filled(nbytes: int, parts: Iterable[bytes]) -> bytes:
    """Join parts until there are so many bytes."""
    taken: list[bytes] = []
    size = 0
    for part in parts:
        taken.append(part)
        size += len(part)
        if size >= nbytes:
            break
    return b"".join(taken)


def empty(number: int) -> Callable[[int], bytes]:
    """Repeat a field without content."""
    return lambda nbytes: field(number, b"") * (nbytes // 2 if number < 16 else nbytes // 3)


def each(number: int, make: Callable[[str], bytes]) -> Callable[[int], bytes]:
    """Repeat a field whose content has a name of its own."""

    def parts() -> Iterator[bytes]:
        return (field(number, make(f"{i:x}")) for i in count())

    return lambda nbytes: filled(nbytes, parts())


def in_graph(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda nbytes: model(graph([NEG], [X], [Y], extra=make(nbytes)))


def in_model(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda nbytes: chain(NEG, extra=make(nbytes))


def in_node(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda nbytes: chain(NEG + make(nbytes))


def in_attribute(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda nbytes: chain(NEG + field(5, field(1, "a") + make(nbytes)))


def in_tensor(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda nbytes: chain(NEG, initializers=[tensor("w", [1], bytes(4)) + make(nbytes)])


def in_function(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return in_model(lambda nbytes: field(25, field(1, "f") + field(10, "f") + make(nbytes)))


def in_shape(make: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return in_graph(
        lambda nbytes: field(11, value("z", field(1, field(1, 1) + field(2, make(nbytes)))))
    )


def small_node(name: str) -> bytes:
    return node("A", [], [name])


def many_nodes(make: Callable[[str], bytes]) -> Callable[[int], bytes]:
    return in_graph(each(1, make))


def nested_graphs(name: str) -> bytes:
    return node("If", ["x"], [name], [attribute("b", 6, graph([], [], [X]), 5)])


def strings(nbytes: int) -> bytes:
    elements = filled(nbytes, (field(6, f"{i:x}") for i in count()))
    total = sum(1 for _ in islice(fields_of(elements), None))
    return chain(NEG, initializers=[tensor("w", [total], dtype=8) + elements])


def fields_of(data: bytes) -> Iterator[int]:
    """Yield the offset of each short field."""
    position = 0
    while position < len(data):
        yield position
        position += 2 + data[position + 1]


CASES: dict[str, Callable[[int], bytes]] = {
    "empty nodes": in_graph(empty(1)),
    "small nodes": many_nodes(small_node),
    "nodes with a name": many_nodes(lambda name: node("A", [], [name], name=name)),
    "nodes with an attribute each": many_nodes(
        lambda name: node("A", [], [name], [attribute(name, 3, 1, 2)])
    ),
    "nodes with empty attributes": many_nodes(
        lambda name: small_node(name) + field(5, b"") * 500
    ),
    "nodes with a tensor": many_nodes(
        lambda name: node("Constant", [], [name], [attribute("value", 5, tensor("", [0]), 4)])
    ),
    "nodes with a graph": many_nodes(nested_graphs),
    "nodes in no order": in_graph(
        lambda nbytes: filled(
            nbytes, (field(1, node("A", [f"{i + 1:x}"], [f"{i:x}"])) for i in count())
        )
    ),
    "empty inputs of a node": in_node(empty(1)),
    "inputs of a node": in_node(lambda nbytes: field(1, "x") * (nbytes // 3)),
    "empty outputs of a node": in_node(empty(2)),
    "outputs of a node": in_node(each(2, str.encode)),
    "empty attributes": in_node(empty(5)),
    "attributes": in_node(each(5, lambda name: attribute(name, 3, 1, 2))),
    "equal attributes": in_node(
        lambda nbytes: field(5, attribute("a", 3, 1, 2)) * (nbytes // 10)
    ),
    "tensors of an attribute": in_attribute(empty(10)),
    "small tensors of an attribute": in_attribute(
        lambda nbytes: field(10, tensor("", [0])) * (nbytes // 10)
    ),
    "graphs of an attribute": in_attribute(empty(11)),
    "types of an attribute": in_attribute(empty(15)),
    "sparse tensors of an attribute": in_attribute(empty(23)),
    "strings of an attribute": in_attribute(empty(9)),
    "numbers of an attribute": in_attribute(lambda nbytes: field(8, 1) * (nbytes // 2)),
    "numbers of two attributes in turn": in_attribute(
        lambda nbytes: (field(8, 1) + field(3, 1)) * (nbytes // 4)
    ),
    "empty initializers": in_graph(empty(5)),
    "initializers": in_graph(each(5, lambda name: tensor(name, [0]))),
    "equal initializers": in_graph(lambda nbytes: field(5, tensor("w", [0])) * (nbytes // 9)),
    "sparse initializers": in_graph(empty(15)),
    "dims of a tensor": in_tensor(lambda nbytes: field(1, 1) * (nbytes // 2)),
    "packed dims of a tensor": in_tensor(lambda nbytes: field(1, b"\1") * (nbytes // 3)),
    "strings of a tensor": strings,
    "external data of a tensor": in_tensor(empty(13)),
    "unpacked numbers of a tensor": in_tensor(lambda nbytes: field(7, 1) * (nbytes // 2)),
    "empty graph inputs": in_graph(empty(11)),
    "graph inputs": in_graph(each(11, lambda name: value(name, type_of([], 1)))),
    "empty graph outputs": in_graph(empty(12)),
    "equal graph outputs": in_graph(lambda nbytes: field(12, Y) * (nbytes // len(Y))),
    "empty value infos": in_graph(empty(13)),
    "value infos": in_graph(each(13, lambda name: value(name, type_of([])))),
    "quantization annotations": in_graph(empty(14)),
    "graph metadata": in_graph(empty(16)),
    "unknown fields": in_graph(lambda nbytes: field(100, b"") * (nbytes // 3)),
    "dims of a shape": in_shape(empty(1)),
    "empty functions": in_model(empty(25)),
    "functions": in_model(each(25, lambda name: field(1, name) + field(10, "f"))),
    "functions with a node": in_model(
        each(25, lambda name: field(1, name) + field(7, node("A", [], ["a"])) + field(10, "f"))
    ),
    "inputs of a function": in_function(empty(4)),
    "outputs of a function": in_function(empty(5)),
    "attribute names of a function": in_function(empty(6)),
    "attributes of a function": in_function(empty(11)),
    "nodes of a function": in_function(each(7, small_node)),
    "empty metadata": in_model(empty(14)),
    "metadata": in_model(each(14, lambda name: field(1, name) + field(2, name))),
    "empty opsets": in_model(empty(8)),
    "opsets": in_model(each(8, lambda name: opset(1, name))),
    "training information": in_model(empty(20)),
    "unknown fields of the model": in_model(lambda nbytes: field(100, b"") * (nbytes // 3)),
    "numbers of the model": in_model(lambda nbytes: field(5, 1) * (nbytes // 2)),
}  # fmt: skip


def measured(nbytes: int, names: list[str], folder: Path) -> dict[str, tuple[float, float, str]]:
    """Read each case in this process: CPU seconds, bytes beyond those before, and the outcome."""
    path = folder / "model.onnx"
    results = {}
    for name in names:
        path.write_bytes(CASES[name](nbytes))
        gc.collect()
        before = resident(reset=True)
        start = time.process_time()
        try:
            formats.open_source(path)
            outcome = "read"
        except ModelError as error:
            outcome = str(error)[:200]
        seconds = time.process_time() - start
        results[name] = (seconds, resident() - before, outcome)
    return results


def resident(*, reset: bool = False) -> int:
    """Return the most memory of this process since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def run(nbytes: int, names: Iterable[str], folder: Path) -> dict[str, tuple[float, float, str]]:
    """Measure in a fresh process, whose memory is that of reading alone."""
    command = [sys.executable, __file__, str(nbytes), str(folder), *names]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    results: dict[str, tuple[float, float, str]] = json.loads(output.stdout)
    return results


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("megabytes", [16])
def test_many_small_parts_are_read_or_refused_at_a_price_in_proportion(
    megabytes: int, tmp_path: Path
) -> None:
    nbytes = megabytes * 1_000_000
    for name, (seconds, taken, outcome) in run(nbytes, CASES, tmp_path).items():
        assert taken < 20 * nbytes + 100_000_000, f"{name}: {taken:,} bytes; {outcome}"
        # CPU time, on a machine that may be slow and busy: six times what a quiet one takes.
        assert seconds < 6 * megabytes / 8, f"{name}: {seconds:.2f} s; {outcome}"


def test_the_limit_on_parts_is_named() -> None:
    with pytest.raises(ModelError, match="other parts than any model of 4,"):
        formats.source_from_bytes(CASES["empty nodes"](4_000_000))


def test_outputs_without_a_type_cost_one_look_at_the_inner_values() -> None:
    names = [f"{i:x}" for i in range(5000)]
    typed = many(13, [value(name, type_of([], 1)) for name in names])
    nodes = [node("Neg", ["x"], [name]) for name in names]
    start = time.process_time()
    opened = formats.source_from_bytes(
        model(graph(nodes, [X], [field(1, name) for name in names], extra=typed))
    )
    assert time.process_time() - start < 6  # 25 million looks would take ten
    assert opened.graph is not None
    assert [spec.name for spec in opened.graph.outputs] == names


if __name__ == "__main__":
    size, place, *chosen = sys.argv[1:]
    json.dump(measured(int(size), chosen or list(CASES), Path(place)), sys.stdout)
