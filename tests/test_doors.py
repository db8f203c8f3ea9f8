"""docs/doors.md: each example is a package that works, listed by `engine plugins`; a broken one of
each kind stops nothing."""

from __future__ import annotations

import gzip
import re
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import engine
from engine.backends import BackendState
from engine.backends.doors import DOORS
from engine.backends.listing import plugins
from engine.cli import main
from engine.distributed.job import Job
from engine.distributed.ranks import Ranks
from engine.formats import ModelFile
from engine.formats.collectives import DOMAIN
from engine.types import ReduceOp
from engine_testing import models
from engine_testing.plugins import install

PAGE = Path(__file__).parents[1] / "docs/doors.md"
KINDS = ("format", "source", "pass", "command", "transport", "extension")


def examples() -> dict[str, tuple[str, str, str, str]]:
    """Group, name, target and module text of each example, by the kind of its door."""
    text = PAGE.read_text()
    tables = map(tomllib.loads, re.findall(r"^```toml\n(.*?)^```", text, re.S | re.M))
    sources = re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", text, re.S | re.M)
    found = {}
    for table, (module, source) in zip(tables, sources, strict=True):
        [(group, entries)] = table["project"]["entry-points"].items()
        [(name, target)] = entries.items()
        assert target.partition(":")[0] == module
        kind = next(door.kind for door in DOORS if door.group == group)
        found[kind] = group, name, target, source
    return found


EXAMPLES = examples()


@pytest.fixture
def offered(plugin_folder: Path) -> Path:
    """The packages of the page, installed while the test runs."""
    for group, name, target, source in EXAMPLES.values():
        install(plugin_folder, name, target, group=group, source=source)
    return plugin_folder


def test_the_page_has_an_example_for_each_of_these_doors() -> None:
    assert tuple(EXAMPLES) == KINDS


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "transport"])
def test_an_example_is_under_60_lines(kind: str) -> None:
    assert len(EXAMPLES[kind][3].splitlines()) < 60


def test_every_door_is_in_the_pages_table() -> None:
    assert re.findall(r"^\| \[?`(engine\.\w+\.v1)`", PAGE.read_text(), re.M) == [
        door.group for door in DOORS
    ]


def test_all_examples_are_listed_as_ready(offered: Path) -> None:
    states = {(found.kind, found.name): found.state for found in plugins()[1]}
    for kind, (_, name, _, _) in EXAMPLES.items():
        assert states[kind, name] is BackendState.READY


def test_a_broken_entry_of_each_kind_stops_nothing(
    offered: Path, null_backend: str, tmp_path: Path
) -> None:
    for group, name, _, _ in EXAMPLES.values():
        install(offered, f"torn_{name}", f"torn_{name}", group=group, source="import no_such_one\n")
    states = {(found.kind, found.name): found for found in plugins()[1]}
    for kind, (_, name, _, _) in EXAMPLES.items():
        assert states[kind, name].state is BackendState.READY
        assert "no_such_one" in states[kind, f"torn_{name}"].reason
    check_all(tmp_path, null_backend)


def test_the_examples_do_what_the_page_says(
    offered: Path, null_backend: str, tmp_path: Path
) -> None:
    check_all(tmp_path, null_backend)


def check_all(folder: Path, null_backend: str) -> None:
    x = np.arange(3, dtype=np.float32).reshape(1, 3)
    with pytest.MonkeyPatch.context() as patch:
        # format
        path = folder / "affine.onnx.gz"
        path.write_bytes(gzip.compress(models.affine(folder).read_bytes()))
        with engine.load(path, target=null_backend) as model:
            np.testing.assert_array_equal(model(x=x)["y"], 2 * x + 1)
        # source
        (folder / "net.linear").write_text('{"weights": [[1], [2], [3]], "bias": [5]}')
        engine.Converter().convert("linear", str(folder / "net.linear"), str(folder / "net"))
        with engine.load(folder / "net.mindir", target=null_backend) as model:
            np.testing.assert_array_equal(model(x=x)["y"], [[13]])
        # pass
        patch.setenv("ENGINE_PASSES", "dropout")
        source = ModelFile(dropping(folder))()
        assert source.graph is not None
        assert [node.op_type for node in source.graph.nodes] == ["Neg"]
        patch.delenv("ENGINE_PASSES")
        # extension
        patch.setenv("ENGINE_EXTENSIONS", "timing")
        with engine.load(models.affine(folder), target=null_backend) as model:
            np.testing.assert_array_equal(model(x=x)["y"], 2 * x + 1)
        patch.delenv("ENGINE_EXTENSIONS")
        # command
        assert main(["weights", str(models.affine(folder))]) == 0
        # transport
        patch.setenv("ENGINE_TRANSPORT", "files")
        patch.setenv("FILES_FOLDER", str(folder / "ranks"))
        for result in summed(folder):
            np.testing.assert_array_equal(result, [3, 3])


def dropping(folder: Path) -> Path:
    nodes = [helper.make_node("Dropout", ["x"], ["d"]), helper.make_node("Neg", ["d"], ["y"])]
    return saved(folder / "dropping.onnx", nodes)


def saved(path: Path, nodes: list[Any], domain: str = "") -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    opsets = [helper.make_opsetid("", 17)]
    opsets += [helper.make_opsetid(domain, 1)] if domain else []
    graph = helper.make_graph(nodes, "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def summed(folder: Path) -> list[Any]:
    """What each of two ranks, which are threads, gets of an all-reduce of [1, 1] and [2, 2]."""
    path = saved(folder / "sum.onnx", [helper.make_node("AllReduce", ["x"], ["y"], domain=DOMAIN)],
                 DOMAIN)  # fmt: skip
    results: list[Any] = [None, None]

    def rank_main(rank: int) -> None:
        try:
            ranks = Ranks(Job(rank, 2, "unused", b"unused", 60), rank, 2, str(path))
            ranks.add_group("", (0, 1))
            ranks.join([])
            call = ranks.call("", time.monotonic() + 60)
            send = np.full(2, rank + 1, np.float32)
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
