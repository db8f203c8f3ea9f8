"""Weights that are lent by handle on the cpu backend."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from caching import needs_cpu
from lending import HANDLE, Lend, Y, by_handle, handle_of, left, listed
from onnx.helper import make_node
from other_process import Other, started

import engine
from engine.weights.shared.broker import ask
from engine.weights.shared.private import PrivateFolder
from engine_testing.making import tensor, write

pytestmark = needs_cpu


def test_the_parts_of_a_model_on_several_backends_are_lent(
    slave: Other, path: Path, folder: Path, null_backend: str
) -> None:
    own = {"null_context": {"unsupported_ops": "Add"}}
    lent = listed(slave.pid, os.getpid())
    with engine.load(path, ["null", "cpu"], config={**own, **lent}) as master:
        assert [placement.backend for placement in master.placement] == ["null", "cpu"]
        record, descriptors = ask(int(master.get_model_info(HANDLE)), 20)
        for descriptor in descriptors:
            os.close(descriptor)
        names = {
            part["identity"]["key"]["backend"]: part["names"]
            for part in json.loads(record)["parts"]
        }
        assert names["null"] == ["digest", "model.onnx"]
        assert "model.onnx" in names["cpu"]
        answer = slave.build(path, {**own, **handle_of(master)}, ["null", "cpu"])
        assert (answer["y"], answer["compiled"]) == (Y, 0)
    assert left(folder) == []


def test_slaves_on_the_cpu_map_the_masters_weights(
    slave: Other, stranger: Other, lend: Lend, tmp_path: Path, plugins: Path
) -> None:
    # Large enough to be mapped.
    weight = np.random.default_rng(0).standard_normal((3, 4096)).astype(np.float32)
    product = make_node("MatMul", ["x", "w"], ["y"])
    x, y = tensor("x", ["b", 3]), tensor("y", ["b", 4096])
    path = write(tmp_path, "wide", [x], [y], [product], {"w": weight})
    with started(plugins, tmp_path / "master") as master:
        first = master.build(path, listed(slave.pid, stranger.pid), "cpu")
        config = by_handle(first["handle"])
        answers = [first, *(other.build(path, config, "cpu") for other in (slave, stranger))]
        maps = [other.tell(do="mapped")["files"] for other in (master, slave, stranger)]
        assert [answer["y"] for answer in answers] == [first["y"]] * 3
        inodes = [{inode for inode, _ in files} for files in maps]
        assert len(inodes[0]) == 1
        assert inodes[0] == inodes[1] == inodes[2]
        # Private: what one of them wrote there would be its own.
        assert all(access[3] == "p" for files in maps for _, access in files)
        assert left(tmp_path / "master")
        master.kill()
        assert [other.tell(do="predict")["y"] for other in (slave, stranger)] == [first["y"]] * 2
    # Files of a killed master go when the next one of that folder comes.
    with PrivateFolder(tmp_path / "master"):
        pass
    assert left(tmp_path / "master") == []


def test_another_backend_or_other_options_are_refused(slave: Other, lend: Lend, path: Path) -> None:
    master = lend(slave.pid, target="cpu")
    answer = slave.build(path, handle_of(master), "null")
    assert "it is of backend 'cpu', and this model of 'null'" in answer["text"]
    config = {**handle_of(master), "cpu_context": {"graph_optimization": "basic"}}
    answer = slave.build(path, config, "cpu")
    assert 'cpu: options is \'{"graph_optimization": "all"}\' there' in answer["text"]
