"""An entry that is damaged, changed or refused is never believed: it is made anew."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from caching import run

import engine
from engine.errors import CompiledFormError
from engine.weights.making import Work, found_or_made
from engine.weights.store import Damaged, Entry, Identity, Store
from engine_testing import models, null_run


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    half = len(data) // 2
    path.unlink()
    if how != "removed":
        changed = {
            "emptied": b"",
            "truncated": data[:half],
            "flipped": data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :],
            "grown": data + b"\0",
        }
        path.write_bytes(changed[how])


@pytest.mark.parametrize("how", ["removed", "emptied", "truncated", "flipped", "grown"])
def test_a_damaged_entry_is_made_anew_and_said(path, load, cache, compiles, caplog, how) -> None:
    run(load(path))
    files = [file for file in cache.rglob("*") if file.is_file()]
    names = [file.relative_to(cache) for file in files]
    assert len(names) >= 2
    for count, name in enumerate(names, 2):
        if how == "flipped" and name.name == "entry.json":
            (cache / name).write_text("{}")
        else:
            damage(cache / name, how)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "engine"):
            run(load(path))
        assert "its entry in the compile cache is not used, and it is compiled anew" in caplog.text
        assert len(compiles) == count, f"{name} {how} was believed"
        run(load(path))
        assert len(compiles) == count


def another_file(cache: Path) -> None:
    [form] = cache.glob("*/form")
    (form / "more.bin").write_bytes(b"")


def link_out(cache: Path) -> None:
    file = next(cache.glob("*/form/*"))
    file.rename(cache.parent / "elsewhere")
    file.symlink_to(cache.parent / "elsewhere")


def pipe_for_the_record(cache: Path) -> None:  # one used to wait for ever
    [record] = cache.glob("*/entry.json")
    record.unlink()
    os.mkfifo(record)


def other_content_of_the_same_time(cache: Path) -> None:
    file = min(file for file in cache.glob("*/form/**/*") if file.stat().st_size)
    status = file.stat()
    with file.open("r+b") as opened:
        first = opened.read(1)[0]
        opened.seek(0)
        opened.write(bytes([first ^ 1]))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "said"),
    [(another_file, ""), (link_out, ""), (other_content_of_the_same_time, ""),
     (pipe_for_the_record, "not a regular file")],
)  # fmt: skip
def test_an_entry_that_was_changed_is_made_anew(path, load, cache, compiles, caplog, change, said):
    run(load(path))
    change(cache)
    with caplog.at_level(logging.WARNING, "engine"):
        run(load(path))
    assert said in caplog.text
    assert len(compiles) == 2


def test_an_entry_under_the_name_of_another_model_is_not_used(
    tmp_path, path, load, cache, compiles
) -> None:
    run(load(path))
    [mine] = cache.iterdir()
    load(models.several(tmp_path)).close()
    [other] = set(cache.iterdir()) - {mine}
    shutil.rmtree(mine)
    other.rename(mine)
    run(load(path))
    assert len(compiles) == 3


def test_a_form_that_the_backend_refuses_is_replaced(
    path, load, cache, compiles, monkeypatch
) -> None:
    run(load(path))
    read, refusals = null_run.read_compiled, []

    def refuse_once(source):
        if not refusals:
            refusals.append(source.compiled)
            raise engine.CompiledFormError("it is of another runtime", str(source.compiled))
        return read(source)

    monkeypatch.setattr(null_run, "read_compiled", refuse_once)
    run(load(path))
    assert len(compiles) == 2
    run(load(path))
    assert len(compiles) == 2


@pytest.mark.parametrize("step", ["of", "verify"])
def test_what_a_signal_handler_raises_is_not_taken_for_a_damaged_entry(
    tmp_path, load, cache, compiles, monkeypatch, step
) -> None:
    path = models.external(tmp_path)
    load(path).close()

    def time_out(number: int, frame: object) -> None:
        raise TimeoutError("the user's own limit")  # an OSError

    def raise_signal(*arguments: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    def interrupted(*arguments: object, **keywords: object) -> None:
        try:
            raise_signal()
        except OSError as error:
            raise Damaged("it cannot be read") from error

    if step == "verify":
        monkeypatch.setattr(Store, step, interrupted)
    else:  # of the weights, which are too young to be remembered
        monkeypatch.setattr(
            "engine.weights.digests.hashlib.file_digest",
            lambda *_: signal.raise_signal(signal.SIGUSR1),
        )
    before = signal.signal(signal.SIGUSR1, time_out)
    try:
        with pytest.raises(TimeoutError, match="the user's own limit"):
            load(path)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(compiles) == 1
    assert len(list(cache.iterdir())) == 1


def test_a_damaged_entry_that_another_has_removed_meanwhile_is_made_anew(tmp_path) -> None:
    class Watched(Store):
        finds = 0

        def find(self, identity: Identity) -> Entry | None:
            self.finds += 1
            assert self.finds < 10, "it looks again and again for what is gone"
            return super().find(identity)

    def refuse(_: Path) -> str:
        raise CompiledFormError("of another version")

    def make(folder: Path | None) -> str:
        assert folder is not None
        (folder / "form").touch()
        return "made"

    def remove() -> None:
        store.remove(identity.name)
        other.close()

    store, identity = Watched(tmp_path), Identity("0" * 64, {"backend": "null"})
    make(store.begin(identity))
    store.commit(identity, "net.onnx")
    with ExitStack() as other:  # another process, which is waited for to replace the entry
        other.enter_context(store.locked(identity.name, shared=True))
        work = Work(
            identity=identity, title="net.onnx", nbytes=1, read=refuse, make=make, check=remove
        )
        assert found_or_made(store, True, work) == "made"
    assert store.names() == [identity.name]


def test_a_damaged_entry_that_many_find_is_made_once(path, load, cache, store, compiles) -> None:
    run(load(path))
    damage(next(cache.glob("*/form/*")), "truncated")
    [name] = store.names()
    with ThreadPoolExecutor(4) as threads:
        with store.locked(name, shared=True):  # until all have found it
            built = [threads.submit(lambda: run(load(path))) for _ in range(4)]
            time.sleep(0.5)
        for each in built:
            each.result(60)
    assert len(compiles) == 2


def test_after_a_crash_of_the_machine_what_was_not_on_the_disk_is_found_out(
    path, load, cache, compiles, monkeypatch, caplog
) -> None:
    """Then files may have their size and times, and be of zeros."""
    run(load(path))
    [form] = cache.glob("*/form")
    for count, file in enumerate(sorted(form.iterdir()), 2):
        status = file.stat()
        with file.open("r+b") as opened:  # the same inode
            opened.write(bytes(status.st_size))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        monkeypatch.setattr("engine.weights.digests.start_of_machine", lambda n=count: str(n))
        run(load(path))
        assert len(compiles) == count
        assert "is not what was written" in caplog.text
    run(load(path))
    assert len(compiles) == count
