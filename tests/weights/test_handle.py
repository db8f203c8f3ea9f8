"""Weights shared by handle: listed processes build on the master's compiled form."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lending import HANDLE, PIDS, Lend, Y, by_handle, handle_of, left, listed, sockets
from other_process import Other, X

import engine
from engine import Model, ModelType
from engine_testing import models


def test_a_listed_process_builds_on_the_masters_form_and_outlives_it(
    slave: Other, lend: Lend, path: Path, folder: Path
) -> None:
    master = lend(slave.pid)
    [y] = master(x=np.array(X, np.float32)).values()
    assert y.tolist() == Y
    before = slave.tell(do="pid")
    answer = slave.build(path, handle_of(master), "null")
    assert answer["y"] == Y
    assert answer["compiled"] == 0, "it has compiled the model itself"
    assert answer["handle"] == ""
    assert before == {"pid": str(slave.pid)}
    assert len(left(folder)) == 2, "the slave's folder is gone; the master's and its lock are there"
    master.close()
    assert left(folder) == []
    assert slave.tell(do="predict")["y"] == Y


def test_two_slaves_build_by_one_handle(slave, stranger, lend, path) -> None:
    master = lend(0, slave.pid, stranger.pid)  # 0: the tutorial's own place in the list
    for other in (slave, stranger, slave):
        assert other.build(path, handle_of(master), "null")["y"] == Y


def test_the_caches_entry_is_lent_as_it_is_and_may_go_meanwhile(
    slave: Other, lend: Lend, path: Path, folder: Path, tmp_path: Path
) -> None:
    from engine.weights.store import Store

    cache = tmp_path / "named"
    engine.load(
        path, "null", config={"common_context": {"compile_cache": "on", "model_cache_dir": cache}}
    ).close()
    [entry] = Store(cache).entries()
    for _ in ("warm", "cold"):
        master = lend(slave.pid, compile_cache="on", model_cache_dir=str(cache))
        inodes = {file.stat().st_ino for file in (cache / "v1/entries").glob("*/form/*")}
        lent = {file.stat().st_ino for file in (cache / "v1/private").glob("*/0/*")}
        assert inodes == lent
        assert len(lent) == 2
        Store(cache).prune(0)
        assert Store(cache).entries() == []
        assert slave.build(path, handle_of(master), "null")["compiled"] == 0
        master.close()
    assert entry.nbytes
    assert left(cache) == []
    assert not folder.exists(), "nothing is made beside the default cache"


@pytest.mark.parametrize("has_entry", [True, False])
def test_what_lies_in_a_read_only_cache_is_lent_from_beside_another(
    slave, lend, path, folder, tmp_path, make_read_only, monkeypatch, has_entry
) -> None:
    cache = tmp_path / "named"
    common = {"compile_cache": "on", "model_cache_dir": str(cache)}
    if has_entry:
        engine.load(path, "null", config={"common_context": common}).close()
    else:
        cache.mkdir()
    before = {file: file.stat().st_ino for file in cache.glob("v1/entries/*/form/*")}

    link = os.link

    def refuse(source: Any, *given: Any, **named: Any) -> None:
        if cache in Path(source).parents:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
        link(source, *given, **named)

    make_read_only(cache)
    monkeypatch.setattr(os, "link", refuse)
    master = lend(slave.pid, **(common | {"compile_cache": "read"}))
    answer = slave.build(path, handle_of(master), "null")
    assert answer["y"] == Y
    assert answer["compiled"] == 0
    assert len(list((folder / "v1/private").glob("*/0/*"))) == 2
    master.close()
    assert left(folder) == []
    assert {file: file.stat().st_ino for file in cache.glob("v1/entries/*/form/*")} == before


def test_a_handle_goes_through_a_signed_64_bit_integer(lend: Lend) -> None:
    handles = {lend(os.getpid()).get_model_info(HANDLE) for _ in range(3)}
    assert len(handles) == 3
    for handle in handles:
        assert str(ctypes.c_int64(int(handle)).value) == handle
        assert int(handle) > 0


def test_the_flat_spelling_of_the_tutorial_is_taken(path, null_context, folder) -> None:
    def build(**config: Any) -> Model:
        model = Model()
        model.build_from_file(str(path), ModelType.MINDIR, null_context, config_dict=config)
        return model

    with build(pids=f"{os.getpid()}") as master:
        handle = master.get_model_info(HANDLE)
        assert build(shared_mem_handle=handle)(x=np.array(X, np.float32))["y"].tolist() == Y
    with pytest.raises(TypeError, match="config_dict_value must be dict"):
        build(shared_handle=handle)


def test_weights_of_a_device_are_told_not_to_be_shared_and_no_key_to_be_unused(
    lend: Lend, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.backends.doors._warned", set())
    with caplog.at_level(logging.WARNING, "engine"):
        for _ in range(2):
            lend(os.getpid())
    # Nor anything else but that the null backend's weights are on a device.
    [said] = caplog.messages
    assert said.startswith("weights in the memory of 'null:0' are not shared: backend 'null' has")


def test_nothing_is_left_when_all_have_ended(slave, lend, path, folder) -> None:
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        master = lend(slave.pid, os.getpid())
        handle = master.get_model_info(HANDLE)
        assert f"@engine-weights-{handle}" in sockets()
        slave.build(path, handle_of(master), "null")
        with engine.load(path, "null", config=handle_of(master)):
            pass
        master.close()
        slave.tell(do="close")
        assert f"@engine-weights-{handle}" not in sockets()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert threading.active_count() == threads
    assert left(folder) == []


def test_a_process_that_never_closes_its_model_ends_and_leaves_nothing(
    path: Path, plugins: Path, tmp_path: Path
) -> None:
    code = (
        "import os, engine\n"
        f"config = {{'common_context': {{{PIDS!r}: str(os.getpid())}}}}\n"
        f"model = engine.load({str(path)!r}, 'null', config=config)\n"
        f"print(model.get_model_info({HANDLE!r}))\n"
    )
    paths = os.pathsep.join([str(plugins), *filter(None, sys.path)])
    environment = {"PYTHONPATH": paths, "ENGINE_CACHE_DIR": str(tmp_path / "ended")}
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    [said] = done.stderr.splitlines()
    assert said.startswith("weights in the memory of 'null:0' are not shared")
    assert f"@engine-weights-{done.stdout.strip()}" not in sockets()
    assert left(tmp_path / "ended") == []


def test_a_model_that_is_resized_keeps_its_handle(slave, folder, null_backend, tmp_path) -> None:
    path = models.no_batch(tmp_path)
    config = listed(slave.pid)
    with engine.load(path, null_backend, config=config) as master:
        handle = master.get_model_info(HANDLE)
        inputs = master.get_inputs()
        master.resize(inputs, [[4, 3]])
        assert master.get_model_info(HANDLE) == handle
        assert len(sockets()) >= 1
        x = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
        answer = slave.build(path, by_handle(handle), "null", x=x)
        assert answer["y"] == [[1.0, 4.0], [3.0, 6.0], [5.0, 8.0]]  # the file's own sizes
        assert answer["compiled"] == 0
    assert left(folder) == []
