"""The examples of docs/doors.md: what they are, and what each must do once it is installed.

    python doors.py TARGET FOLDER       check those that are installed here, on a backend

tests/test_doors.py installs them for the tests' own process; tests/wheel/ installs them as wheels.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
import threading
import time
import tomllib
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper

PAGE = Path(__file__).parents[1] / "docs/doors.md"
KINDS = ("format", "source", "pass", "command", "transport", "extension", "extension")


class Example(NamedTuple):
    """An entry point of the page, and the text of its module."""

    kind: str
    group: str
    name: str
    target: str
    source: str


def examples(page: Path = PAGE) -> list[Example]:
    """Return the page's examples, in its order."""
    text = page.read_text()
    tables = map(tomllib.loads, re.findall(r"^```toml\n(.*?)^```", text, re.S | re.M))
    sources = re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", text, re.S | re.M)
    found = []
    for kind, table, (module, source) in zip(KINDS, tables, sources, strict=True):
        [(group, entries)] = table["project"]["entry-points"].items()
        [(name, target)] = entries.items()
        assert target.partition(":")[0] == module
        found.append(Example(kind, group, name, target, source))
    return found


def check_all(folder: Path, target: str) -> None:
    """Use each example as the page says."""
    import engine
    from engine.cli import main
    from engine.formats import ModelFile

    x = np.arange(3, dtype=np.float32).reshape(1, 3)
    doubled = saved(folder / "doubled.onnx", [helper.make_node("Add", ["x", "x"], ["y"])])
    # format
    path = folder / "doubled.onnx.gz"
    path.write_bytes(gzip.compress(doubled.read_bytes()))
    with engine.load(path, target=target) as model:
        np.testing.assert_array_equal(model(x=x)["y"], 2 * x)
    # source
    (folder / "net.linear").write_text('{"weights": [[1], [2], [3]], "bias": [5]}')
    engine.Converter().convert("linear", str(folder / "net.linear"), str(folder / "net"))
    with engine.load(folder / "net.mindir", target=target) as model:
        np.testing.assert_array_equal(model(x=x)["y"], [[13]])
    # pass
    nodes = [helper.make_node("Dropout", ["x"], ["d"]), helper.make_node("Neg", ["d"], ["y"])]
    with mock.patch.dict(os.environ, ENGINE_PASSES="dropout"):
        source = ModelFile(saved(folder / "dropping.onnx", nodes))()
    assert source.graph is not None
    assert [node.op_type for node in source.graph.nodes] == ["Neg"]
    # command
    assert main(["weights", str(doubled)]) == 0
    # transport
    with mock.patch.dict(os.environ, ENGINE_TRANSPORT="files", FILES_FOLDER=str(folder / "ranks")):
        for result in summed(folder):
            np.testing.assert_array_equal(result, [[3, 3, 3]])
    # extensions
    timed = mock.patch.dict(os.environ, ENGINE_EXTENSIONS="timing,counter;label=web")
    said = io.StringIO()
    with timed, redirect_stderr(said), engine.load(doubled, target=target) as model:
        np.testing.assert_array_equal(model(x=x)["y"], 2 * x)
    assert re.fullmatch(r"doubled: [\d.]+ s\ndoubled: web {'completed': 1}\n", said.getvalue())


def saved(path: Path, nodes: list[Any], domain: str = "") -> Path:
    """Write a model of x to y, both float32[1, 3]."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in "xy")
    opsets = [helper.make_opsetid("", 17)]
    opsets += [helper.make_opsetid(domain, 1)] if domain else []
    graph = helper.make_graph(nodes, "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def summed(folder: Path) -> list[Any]:
    """Return what each of two ranks, which are threads, gets of an all-reduce of ones and twos."""
    from engine.distributed.job import Job
    from engine.distributed.ranks import Ranks
    from engine.types import ReduceOp

    domain = "com.microsoft"
    node = helper.make_node("AllReduce", ["x"], ["y"], domain=domain)
    path = saved(folder / "sum.onnx", [node], domain)
    results: list[Any] = [None, None]

    def rank_main(rank: int) -> None:
        try:
            ranks = Ranks(Job(rank, 2, "unused", b"unused", 60), rank, 2, str(path))
            ranks.add_group("", (0, 1))
            ranks.join([])
            call = ranks.call("", time.monotonic() + 60)
            send = np.full((1, 3), rank + 1, np.float32)
            receive = np.empty_like(send)
            call.comm.allreduce(send, receive, ReduceOp.SUM, call.deadline_s)
            results[rank] = receive
            ranks.close()
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    return results


if __name__ == "__main__":
    check_all(Path(sys.argv[2]), sys.argv[1])
