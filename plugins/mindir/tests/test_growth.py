"""Files that count on a reader's patience: time and memory stay in proportion to the file.

8 MB take at most 2 s of CPU time, and any file at most 20 times its size and 100 MB of memory.
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice, product
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine import CancelToken
from engine.errors import Cancelled, ModelError
from engine.formats import ModelFile, source_from_bytes

MB = 1_000_000
FLOAT, INT64, TENSORS, TUPLE = 1, 7, 19, 20

Make = Callable[[SimpleNamespace, int], bytes]


def _filled(unit: bytes, size: int) -> bytes:
    return unit * (size // len(unit))


def _named(make: Callable[[bytes], bytes], size: int) -> bytes:
    """Messages of different names, of four letters: `size` bytes in all."""
    names = (bytes(letters) for letters in product(range(33, 127), repeat=4))
    return b"".join(make(name) for name in islice(names, size // len(make(b"name"))))


def _model(m: SimpleNamespace, more: bytes = b"", *nodes: bytes, outside: bytes = b"") -> bytes:
    """A model from x to y. more: bytes of the main graph; outside: of the file."""
    body = nodes or (m.node("ReLU", ["G:x"], "G:y"),)
    graph = m.graph("G", body, [m.value("G:x", 2)], [m.value("G:y", 2)])
    return bytes(m.model(graph + more) + outside)


def _constant(m: SimpleNamespace, kind: int, held: bytes) -> bytes:
    value = m.text(5, m.text(1, "value") + m.number(16, kind) + held)
    node = m.text(4, "Constant") + m.text(2, "k") + value
    return _model(m, b"", node, m.node("ReLU", ["k"], "G:y"))


WIDE: dict[str, Make] = {
    "nodes": lambda m, n: bytes(m.model(_filled(m.text(1, b""), n) + m.graph("G", [], [], []))),
    "nodes_with_names": lambda m, n: _model(
        m, _named(lambda name: m.text(1, m.text(2, name) + m.text(7, name[::-1])), n)
    ),
    "attributes_of_a_node": lambda m, n: _model(
        m, b"", m.node("ReLU", ["G:x"], "G:y") + _filled(m.text(5, b""), n)
    ),
    "attributes_of_many_nodes": lambda m, n: _model(
        m, _filled(m.text(1, m.text(1, "G:x") + m.text(4, "ReLU") + m.text(5, b"") * 1000), n)
    ),
    "values_of_a_constant": lambda m, n: _constant(m, TUPLE, _filled(m.text(17, b""), n)),
    "tensors_of_a_constant": lambda m, n: _constant(m, TENSORS, _filled(m.text(12, b""), n)),
    "numbers_of_a_constant": lambda m, n: _constant(m, INT64, _filled(m.number(10, 5), n)),
    "texts_of_a_constant": lambda m, n: _constant(m, INT64, _filled(m.text(11, b""), n)),
    "inputs_of_a_node": lambda m, n: _model(
        m, b"", m.node("MakeTuple", (), "G:y") + _named(lambda name: m.text(1, name), n)
    ),
    "parameters": lambda m, n: _model(m, _filled(m.text(3, b""), n)),
    "parameters_of_one_name": lambda m, n: _model(
        m,
        _named(
            lambda name: m.text(
                3, m.number(2, 3) + m.text(7, name) + m.text(9, b"1") + m.text(13, "w")
            ),
            n,
        ),
    ),
    "inputs": lambda m, n: _model(m, _filled(m.text(5, b""), n)),
    "inputs_of_one_name": lambda m, n: _model(
        m, _filled(m.text(5, m.text(1, "G:x") + m.text(2, m.number(2, FLOAT))), n)
    ),
    "outputs": lambda m, n: _model(m, _filled(m.text(6, b""), n)),
    "tensors_of_an_output": lambda m, n: _model(
        m, m.text(6, m.text(1, "G:y") + _filled(m.text(2, b""), n))
    ),
    "values_of_an_input": lambda m, n: _model(
        m, m.text(5, m.text(1, "z") + m.text(5, m.number(16, TUPLE) + _filled(m.text(17, b""), n)))
    ),
    "functions": lambda m, n: _model(m, outside=_named(lambda name: m.text(8, m.text(2, name)), n)),
    "nodes_of_functions": lambda m, n: _model(
        m, outside=_named(lambda name: m.text(8, m.text(2, name) + m.text(1, b"") * 50), n)
    ),
    "primitives": lambda m, n: _model(m, outside=_filled(m.text(12, b""), n)),
    "attributes_of_a_primitive": lambda m, n: _model(
        m, b"", m.node("REF::p", ["G:x"], "G:y"),
        outside=m.text(12, m.text(1, "p") + m.text(2, "ReLU") + _filled(m.text(3, b""), n)),
    ),
    "user_info": lambda m, n: _model(m, outside=_filled(m.text(14, b""), n)),
    "unknown_fields": lambda m, n: _model(m, outside=_filled(m.text(99, b""), n)),
}  # fmt: skip
QUICK = ("nodes", "attributes_of_a_node", "values_of_a_constant", "parameters")

_CHILD = """
import sys, time
from engine.formats import open_source, source_from_bytes
from engine.errors import ModelError
source_from_bytes(open(sys.argv[1], "rb").read())

def memory(what):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(what))

before, start, message = memory("VmRSS"), time.process_time(), ""
try:
    open_source(sys.argv[2])
except ModelError as error:
    message = str(error)
print(time.process_time() - start, (memory("VmHWM") - before) * 1024, message)
"""


def _opened(path: Path) -> tuple[float, int, str]:
    """Open a file in a process of its own: CPU seconds, bytes of memory, and the error if any."""
    plain = Path(__file__).parents[3] / "tests" / "data" / "mindir" / "mlp.mindir"
    command = [sys.executable, "-c", _CHILD, str(plain), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    seconds, nbytes, message = done.stdout.split(" ", 2)
    return float(seconds), int(nbytes), message.strip()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to measure memory by")
@pytest.mark.parametrize(
    ("name", "nbytes"),
    [
        pytest.param(
            name, nbytes, id=f"{name}-{nbytes // MB}MB",
            marks=() if name in QUICK and nbytes == 8 * MB else pytest.mark.slow,
        )
        for name in WIDE for nbytes in ((8 * MB, 32 * MB) if name in QUICK else (8 * MB,))
    ],
)  # fmt: skip
def test_a_file_of_empty_messages_is_refused_at_once(
    name: str, nbytes: int, tmp_path: Path, mindir: SimpleNamespace
) -> None:
    path = tmp_path / "model.mindir"
    path.write_bytes(WIDE[name](mindir, nbytes))
    seconds, peak, message = _opened(path)
    assert "beyond any real model" in message or "is defined nowhere" in message, message
    assert seconds < 6 * nbytes / (8 * MB)
    assert peak < 20 * nbytes + 100 * MB


def test_packed_integers_are_decoded_as_protobuf_decodes_them(mindir: SimpleNamespace) -> None:
    from engine_mindir.decode import attribute
    from engine_mindir.messages import Source

    chosen = np.random.default_rng(7)
    numbers = [0, 1, -1, 127, 128, -(1 << 63), (1 << 63) - 1]
    shifts = chosen.integers(0, 62, 40_000)
    numbers += (chosen.integers(-(1 << 62), 1 << 62, 40_000) >> shifts).tolist()
    encoded = mindir.text(10, b"".join(mindir.varint(number) for number in numbers))
    assert attribute(Source(memoryview(encoded)), (0, len(encoded))).ints == numbers


@pytest.mark.parametrize(
    "packed", [b"\x80", b"\x01\x80", b"\xff" * 11 + b"\x01", b"\xff" * 9 + b"\x02"]
)
def test_a_damaged_packed_integer_is_refused(packed: bytes, mindir: SimpleNamespace) -> None:
    data = _constant(mindir, INT64, mindir.text(10, packed))
    with pytest.raises(ModelError, match=r"within a varint|more than 64 bits"):
        source_from_bytes(data)


def _repeated(number: int, make: Callable[[int], list[bytes]]) -> Iterator[bytes]:
    for index in range(number):
        yield from make(index)


def _image(m: SimpleNamespace, *nodes: bytes, size: int = 6, more: Any = ()) -> bytes:
    inputs = [m.value("G:x", 1, 4, size, size), *more]
    return bytes(m.net(nodes, inputs, {"G:y": (2,)}))


def _vector(m: SimpleNamespace) -> bytes:
    return bytes(m.value("G:s", 1 << 30, data_type=INT64))


BOMBS: dict[str, tuple[Callable[[SimpleNamespace], bytes], str]] = {
    # The shape of a tensor whose rank is an input's size.
    "shape": (
        lambda m: _image(m, m.node("Reshape", ["G:x", "G:s"], "G:y"), more=[_vector(m)]),
        "",
    ),
    "paddings": (
        lambda m: _image(m, m.node("PadV3", ["G:x", "G:s"], "G:y"), more=[_vector(m)]),
        "unfolds into more than",
    ),
    "tuple": (
        lambda m: _image(m, m.node("TensorToTuple", ["G:s"], "G:y"), more=[_vector(m)]),
        "unfolds into more than",
    ),
    # Tables that are written into the model.
    "max_pool": (
        lambda m: _image(
            m, m.constant("s", (1 << 28, 1 << 28)), m.node("AdaptiveMaxPool2D", ["G:x", "s"], "G:y")
        ),
        "adaptive pooling of 6 places into 268,435,456",
    ),
    "open_average_pool": (
        lambda m: _image(
            m, m.constant("s", (1 << 30, 2)), m.node("AdaptiveAvgPool2D", ["G:x", "s"], "G:y"),
            size=-1,
        ),
        "1073741824 x 2 to be written out; at most 4,194,304",
    ),
    "crops": (
        lambda m: _image(
            m, m.constant("s", (1 << 29, 1 << 29)),
            m.node("CropAndResize", ["G:x", "G:b", "G:i", "s"], "G:y"),
            more=[m.value("G:b", 3, 4), m.value("G:i", 3, data_type=6)],
        ),
        "536870912 to be written out",
    ),
    "lstm": (
        lambda m: _image(
            m,
            m.node(
                "LSTM", ["G:t", "G:h", "G:h", "G:w"], "G:y",
                m.scalar("input_size", 4), m.scalar("hidden_size", 1 << 26),
            ),
            more=[
                m.value("G:t", 2, 3, 4), m.value("G:h", 1, 3, 1 << 26),
                m.value("G:w", (1 << 28) * (5 + (1 << 26))),
            ],
        ),
        "4 x 67108864 to be written out",
    ),
    "dynamic_rnn": (
        lambda m: _image(
            m, m.node("DynamicRNN", ["G:t", "G:w", "G:b"], "G:y", m.scalar("forget_bias", 1.0)),
            more=[
                m.value("G:t", 2, 3, 1 << 31), m.value("G:w", 1 << 33, 1 << 33),
                m.value("G:b", 1 << 33),
            ],
        ),
        "4 x 2147483648 to be written out",
    ),
    "many_tables": (
        lambda m: _image(
            m,
            *_repeated(60, lambda i: [
                m.constant(f"s{i}", (2048 + i, 2048)),
                m.node("ResizeBicubic", ["G:x", f"s{i}"], f"G:y{i}"),
            ]),
            m.node("MakeTuple", [f"G:y{i}" for i in range(60)], "G:y"), size=1024,
        ),
        "and more before; at most 8,388,608 elements of one model",
    ),
    "many_fills": (
        lambda m: _image(
            m, m.constant("v", 1.5),
            *_repeated(40, lambda i: [
                m.constant(f"s{i}", (500 + i, 1000, 250)),
                m.node("FillV2", [f"s{i}", "v"], f"G:y{i}"),
            ]),
            m.node("MakeTuple", [f"G:y{i}" for i in range(40)], "G:y"),
        ),
        "expanded to more than 1,073,741,824 bytes",
    ),
    "text": (
        lambda m: _image(
            m, m.constant("G:0", "x" * 64),
            *_repeated(60, lambda i: [m.node("JoinedStr", [f"G:{i}"] * 2, f"G:{i + 1}")]),
            m.node("ReLU", ["G:x"], "G:y"),
        ),
        "",
    ),
    # Tuples and settings that are gone through again and again.
    "appended": (
        lambda m: _image(
            m, m.constant("G:0", tuple(range(70_000))),
            *_repeated(2_000, lambda i: [m.node("ListAppend", [f"G:{i}", "G:x"], f"G:{i + 1}")]),
            m.node("ReLU", ["G:x"], "G:y"),
        ),
        "more than 3,000,000 values of tuples are passed on",
    ),
    "searched": (
        lambda m: _image(
            m, m.constant("k", tuple(range(70_000))), m.constant("q", -5),
            *_repeated(2_000, lambda i: [m.node("InSequence", ["q", "k"], f"G:{i}")]),
            m.node("ReLU", ["G:x"], "G:y"),
        ),
        "more than 3,000,000 values of tuples are passed on",
    ),
}  # fmt: skip


def _lowered(name: str, mindir: SimpleNamespace) -> int:
    """Lower a file that asks for much; returns its size."""
    make, message = BOMBS[name]
    data = make(mindir)
    with pytest.raises(ModelError, match=message) if message else nullcontext():
        source_from_bytes(data)
    return len(data)


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_takes_little_time(name: str, mindir: SimpleNamespace) -> None:
    start = process_time()
    _lowered(name, mindir)
    assert process_time() - start < 10.0


LONG_TO_TRACE = ("appended", "searched", "paddings", "tuple")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG_TO_TRACE else ()) for name in BOMBS],
)
def test_a_small_file_takes_little_memory(name: str, mindir: SimpleNamespace) -> None:
    tracemalloc.start()
    try:
        size = _lowered(name, mindir)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * size + 100 * MB


def test_a_node_that_is_visited_often_is_decoded_once(mindir: SimpleNamespace) -> None:
    late = mindir.text(10, bytes(MB)) + mindir.typed(2)  # the name comes after a million numbers
    node = mindir.text(1, "F:x") + mindir.text(2, "F:y") + mindir.text(4, "ReLU")
    body = mindir.function("F", [node + mindir.text(5, late)])
    calls = [mindir.node("REF::F", ["G:x"], f"G:{index}") for index in range(5_000)]
    start = process_time()
    source_from_bytes(mindir.net([*calls, mindir.node("ReLU", ["G:x"], "G:y")], functions=[body]))
    assert process_time() - start < 10.0


def test_five_thousand_functions_in_a_circle_are_refused_at_once(mindir: SimpleNamespace) -> None:
    functions = [
        mindir.function(f"F{n}", [mindir.node(f"REF::F{(n + 1) % 5_000}", [f"F{n}:x"], f"F{n}:y")])
        for n in range(5_000)
    ]
    start = process_time()
    with pytest.raises(ModelError, match="call each other 100 deep"):
        source_from_bytes(mindir.net([mindir.node("REF::F0", ["G:x"], "G:y")], functions=functions))
    assert process_time() - start < 10.0


def test_a_weight_that_many_nodes_normalise_is_not_copied_for_each(mindir: SimpleNamespace) -> None:
    def convolved(index: int) -> list[bytes]:
        return [
            mindir.node("Conv2D", ["G:x", "w"], f"G:c{index}", mindir.scalar("pad_mode", "valid")),
            mindir.node(
                "BatchNorm", [f"G:c{index}", "one", "one", "one", "one"], f"G:n{index}",
                mindir.scalar("is_training", False), mindir.scalar("epsilon", 1e-5),
            ),
            mindir.node("TupleGetItem", [f"G:n{index}", "zero"], f"G:y{index}"),
        ]  # fmt: skip

    data = _image(
        mindir, mindir.constant("w", np.ones((512, 512, 3, 3), np.float32)),
        mindir.constant("one", np.ones(512, np.float32)), mindir.constant("zero", 0),
        *_repeated(100, convolved),
        mindir.node("MakeTuple", [f"G:y{i}" for i in range(100)], "G:y"),
        more=[mindir.value("G:x", 1, 512, 8, 8)],
    )  # fmt: skip
    source = source_from_bytes(data)
    assert source.graph is not None
    written = sum(parameter.nbytes for parameter in source.graph.parameters)
    assert 9 * MB < written < len(data) + (64 << 20) + MB
    assert [node.op_type for node in source.graph.nodes].count("BatchNormalization") > 90


def test_lowering_stops_when_it_is_cancelled(mindir: SimpleNamespace) -> None:
    class Later(CancelToken):
        """Cancelled once it has been looked at a hundred times."""

        looked = 0

        @property
        def cancelled(self) -> bool:
            self.looked += 1
            return self.looked > 100

        @cancelled.setter
        def cancelled(self, value: bool) -> None:
            pass

    nodes = [mindir.node("ReLU", [f"G:{i}" if i else "G:x"], f"G:{i + 1}") for i in range(1_000)]
    file = ModelFile.of_bytes(mindir.net(nodes, {"G:x": (2,)}, {"G:1000": (2,)}))
    token = Later()
    file.watch(token)
    with pytest.raises(Cancelled):
        file()
    assert 100 < token.looked < 110
