"""A model is compiled once per machine, and found again, whole and right, or compiled anew."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import written

import engine
from engine.errors import CompiledFormError
from engine.model.model import model_state
from engine.weights.making import Work, found_or_made
from engine.weights.store import Damaged, Entry, Identity, Store
from engine_testing import models, null_run
from engine_testing import null_device as null

X = np.array([[1, 2, 3]], np.float32)
Y = np.array([[3, 5, 7]], np.float32)  # 2x + 1

needs_cpu = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that the null backend compiled, rather than read in compiled form."""
    done: list[str] = []
    write = null_run.write_compiled

    def count(folder: Path, loaded: object) -> None:
        done.append(str(folder))
        write(folder, loaded)

    monkeypatch.setattr(null_run, "write_compiled", count)
    return done


def run(model: engine.Model) -> None:
    with model:
        [y] = model(x=X).values()
        np.testing.assert_array_equal(y, Y)


def test_the_second_build_compiles_nothing(path, load, cache, compiles) -> None:
    for _ in range(3):
        run(load(path))
    assert len(compiles) == 1
    assert len(list(cache.iterdir())) == 1


def test_a_model_of_other_content_or_other_options_is_another_entry(
    tmp_path, load, cache, compiles
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    run(load(models.affine(first)))
    run(load(shutil.copy(first / "affine.onnx", second / "renamed.onnx")))  # the same content
    assert len(compiles) == 1
    load(models.several(second)).close()
    assert len(compiles) == 2


def new_weights(folder: Path) -> None:
    data = folder / "external.bin"
    weights = np.frombuffer(data.read_bytes(), np.float32)
    data.unlink()
    data.write_bytes((weights * 2).astype(np.float32).tobytes())


def exchanged_links(folder: Path) -> None:
    for name, target in (("a.bin", "blobs/b"), ("b.bin", "blobs/a")):
        (folder / name).unlink()
        (folder / name).symlink_to(target)  # the same files, for other tensors


@pytest.mark.parametrize(
    ("make", "x", "change", "before", "after"),
    [
        # y = x + 0, 1, 2, ..
        (models.external, np.zeros((1, 256), "f"), new_weights, np.arange(256),
         2 * np.arange(256)),
        (models.linked, np.zeros((1, 3), "f"), exchanged_links, [2] * 3, [-2] * 3),
    ],
)  # fmt: skip
def test_external_data_belongs_to_a_models_content(
    tmp_path, load, compiles, make, x, change, before, after
) -> None:
    path = make(tmp_path)
    for expected in (before, after):
        with load(path) as model:
            np.testing.assert_array_equal(model(x=x)["y"], [expected])
        if expected is before:
            change(tmp_path)
    assert len(compiles) == 2


def test_a_model_without_a_compiled_form_is_remembered(path, load, cache, monkeypatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(null_run, "write_compiled", lambda folder, loaded: asked.append(folder))
    for _ in range(3):
        run(load(path))
    assert len(asked) == 1
    assert list(cache.iterdir()) == []
    [noted] = (cache.parent / "formless").iterdir()
    os.utime(noted, (0, 0))  # it may have been a disk that was full
    run(load(path))
    assert len(asked) == 2
    Store(cache.parents[1]).prune(0)
    assert [file.name for file in (cache.parent / "formless").iterdir()] == [noted.name]
    os.utime(noted, (0, 0))
    Store(cache.parents[1]).prune(0)
    assert list((cache.parent / "formless").iterdir()) == []


def test_models_that_are_replaced_are_compiled_anew(tmp_path, path, load, compiles) -> None:
    run(load(path))
    other = models.several(tmp_path)
    os.replace(other, path)
    with load(path) as model:
        assert [spec.name for spec in model.inputs] == ["z", "a", "m"]
    assert len(compiles) == 2


def test_small_models_are_kept_only_where_a_folder_is_named(
    tmp_path, path, cache, null_backend, compiles
) -> None:
    run(engine.load(path, null_backend))
    assert compiles == []
    assert not (tmp_path / "default").exists()


@pytest.mark.parametrize("where", ["the environment", "the configuration"])
def test_the_cache_can_be_turned_off(path, load, cache, compiles, monkeypatch, where) -> None:
    if where == "the environment":
        monkeypatch.setenv("ENGINE_CACHE", "off")
        run(load(path))
    else:
        run(load(path, common_context={"compile_cache": "off"}))
    assert not cache.exists()


def test_a_cache_that_is_only_read_gets_nothing_new(path, load, cache, compiles) -> None:
    only_read = {"compile_cache": "read"}
    run(load(path, common_context=only_read))
    assert list(cache.iterdir()) == []
    run(load(path))
    run(load(path, common_context=only_read))
    assert len(compiles) == 1


def test_an_unknown_mode_is_an_error_that_lists_the_modes(tmp_path, load) -> None:
    with pytest.raises(
        ValueError, match="on, wait, read, off, but got 'raed'; did you mean 'read'"
    ):
        load(models.affine(tmp_path), common_context={"compile_cache": "raed"})


def test_secret_models_leave_nothing(tmp_path, load, cache, null_backend) -> None:
    pytest.importorskip("cryptography")
    from engine.formats.encryption import encrypt

    key = b"0123456789abcdef"
    path = tmp_path / "secret.mindir"
    path.write_bytes(encrypt(models.affine(tmp_path).read_bytes(), key))
    common = {"model_cache_dir": str(cache.parents[1])}
    run(engine.load(path, null_backend, dec_key=key, config={"common_context": common}))
    assert not cache.parents[1].exists()


@needs_cpu
def test_the_converter_leaves_nothing_of_what_it_encrypts(
    tmp_path, path, cache, monkeypatch
) -> None:
    """It runs the result, whose plaintext is nobody's to keep."""
    pytest.importorskip("cryptography")
    monkeypatch.setattr("engine.weights.compile_cache.MIN_BYTES", 0)
    converter = engine.Converter()
    converter.enable_encryption = True
    converter.encrypt_key = "30313233343536373839414243444546"
    converter.infer = True
    converter.convert(engine.FmkType.ONNX, str(path), str(tmp_path / "encrypted"))
    assert not (tmp_path / "default").exists()
    engine.load(path, target="cpu").close()  # a control: what is built otherwise is kept
    assert len(list((tmp_path / "default/v1/entries").iterdir())) == 1


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


def test_a_cache_that_another_user_could_write_is_not_used(
    tmp_path, load, cache, compiles, caplog
) -> None:
    cache.parent.mkdir(parents=True)
    cache.parent.chmod(0o777)
    with caplog.at_level(logging.WARNING, "engine"):
        run(load(models.affine(tmp_path)))
    assert compiles == []
    assert "open to others" in caplog.text


def test_a_disk_that_is_full_or_read_only_means_no_cache(
    path, load, cache, compiles, monkeypatch, caplog
) -> None:

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    for step in ("begin", "commit"):
        monkeypatch.setattr(Store, step, fail)
        run(load(path))
        monkeypatch.undo()
        monkeypatch.setenv("ENGINE_CACHE", "on")
    assert list(cache.iterdir()) == []
    assert list((cache.parent / "building").iterdir()) == []


@pytest.mark.parametrize("step", ["rename", "disk_usage"])
def test_a_folder_that_fails_half_way_means_no_cache(path, load, cache, monkeypatch, step) -> None:
    run(load(path))
    [record] = cache.glob("*/entry.json")
    record.write_text("")

    def fail(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr({"rename": Path, "disk_usage": shutil}[step], step, fail)
    run(load(path))


@pytest.mark.parametrize("is_told", [True, False])
def test_a_backend_that_cannot_write_its_form_runs_without_one(
    tmp_path, load, cache, monkeypatch, caplog, is_told
) -> None:
    def fail(folder: Path, loaded: object) -> None:
        full = OSError(28, "No space left on device")
        if is_told:
            raise engine.BackendUnavailable("the compiled form cannot be written") from full
        raise full

    monkeypatch.setattr(null_run, "write_compiled", fail)
    with caplog.at_level(logging.WARNING, "engine"):
        run(load(models.affine(tmp_path)))
    assert "the compile cache is not written" in caplog.text
    assert list(cache.iterdir()) == []
    assert list((cache.parent / "building").iterdir()) == []


@pytest.mark.parametrize("step", ["of", "verify"])
def test_what_a_signal_handler_raises_is_not_taken_for_a_damaged_entry(
    tmp_path, load, cache, compiles, monkeypatch, step
) -> None:
    path = models.external(tmp_path)
    load(path).close()

    def time_out(number: int, frame: object) -> None:
        raise TimeoutError("the user's own limit")  # an OSError

    def interrupted(*arguments: object, **keywords: object) -> None:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except OSError as error:
            raise Damaged("it cannot be read") from error

    def digest(*arguments: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    if step == "verify":
        monkeypatch.setattr(Store, step, interrupted)
    else:  # of the weights, which are too young to be remembered
        monkeypatch.setattr("engine.weights.digests.hashlib.file_digest", digest)
    before = signal.signal(signal.SIGUSR1, time_out)
    try:
        with pytest.raises(TimeoutError, match="the user's own limit"):
            load(path)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(compiles) == 1
    assert len(list(cache.iterdir())) == 1


def test_a_user_without_a_home_builds_without_a_cache(tmp_path, null_backend, caplog) -> None:
    common = {"model_cache_dir": "~nobody-of-this-name/cache", "compile_cache": "on"}
    with caplog.at_level(logging.WARNING, "engine"):
        run(engine.load(models.affine(tmp_path), null_backend, config={"common_context": common}))
    assert "no home folder" in caplog.text


def test_an_isolated_model_shares_its_entry_with_others(path, load, cache, compiles) -> None:
    run(load(path, common_context={"isolate": "true"}))  # the worker has made it
    assert len(list(cache.iterdir())) == 1
    run(load(path))
    run(load(path, common_context={"isolate": "true"}))
    assert compiles == []


@pytest.mark.parametrize("is_warm", [True, False])
def test_the_worker_after_one_that_died_needs_no_entry(path, load, cache, is_warm) -> None:
    if is_warm:
        run(load(path))
    with load(path, common_context={"isolate": "true"}) as model:
        worker = model_state(model).plan.executable.process().worker
        Store(cache.parents[1]).prune(0)
        os.kill(worker.pid, signal.SIGKILL)
        with suppress(engine.ModelError):  # unless the end was seen before
            model(x=X)
        [y] = model(x=X).values()
        np.testing.assert_array_equal(y, Y)
    assert list(cache.iterdir()) == []


def test_an_error_of_the_backend_leaves_nothing_half_made(path, load, cache, monkeypatch) -> None:

    def fail(folder: Path, loaded: object) -> None:
        (folder / "half").write_bytes(b"1")
        raise engine.ModelError("the runtime does not like it")

    monkeypatch.setattr(null_run, "write_compiled", fail)
    with pytest.raises(engine.ModelError, match="does not like it"):
        load(path)
    assert list(cache.iterdir()) == []
    assert list((cache.parent / "building").iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setenv("ENGINE_CACHE", "on")
    run(load(path))


def test_threads_that_build_the_same_model_wait_for_one_of_them(path, load, compiles) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: run(load(path)), range(8)))
    assert len(compiles) == 1


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


def test_a_damaged_entry_that_many_find_is_made_once(path, load, cache, compiles) -> None:
    run(load(path))
    damage(next(cache.glob("*/form/*")), "truncated")
    store = Store(cache.parents[1])
    [name] = store.names()
    with ThreadPoolExecutor(4) as threads:
        with store.locked(name, shared=True):  # until all have found it
            built = [threads.submit(lambda: run(load(path))) for _ in range(4)]
            time.sleep(0.5)
        for each in built:
            each.result(60)
    assert len(compiles) == 2


BUILD = """
import sys
import numpy as np, engine
folder, count, *paths = sys.argv[1:]
config = {
    "common_context": {"model_cache_dir": folder}, "null_context": {"unsupported_ops": "Tanh"}
}
for _ in range(int(count)):
    for path in paths:
        target = ["null", "cpu"] if "mixed" in path else "cpu"
        with engine.load(path, target, threads=1, config=config) as model:
            inputs = [np.ones([d if isinstance(d, int) else 2 for d in spec.shape], str(spec.dtype))
                      for spec in model.inputs]
            y = model.predict(inputs)[0].get_data_to_numpy()
            print(np.asarray(y).tobytes().hex()[:32], end=" ", flush=True)
    print(flush=True)
"""


@pytest.fixture
def builder(plugin_folder: Path, null_backend: str) -> Callable[..., subprocess.Popen[str]]:
    """Start a process that builds models so many times, and prints what each of them gives."""

    def start(folder: Path, paths: list[Path], count: int, mode: str = "on") -> Any:
        return subprocess.Popen(
            [sys.executable, "-c", BUILD, str(folder), str(count), *map(str, paths)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(plugin_folder), "ENGINE_CACHE": mode},
        )

    return start


@needs_cpu
def test_processes_that_build_the_same_model_leave_one_entry(tmp_path, builder) -> None:
    paths = [models.external(tmp_path)]
    children = [builder(tmp_path / "cache", paths, 2) for _ in range(3)]
    outputs = [child.communicate(timeout=120) for child in children]
    # y = x + 0, 1, 2, .., of x = 1
    expected = np.arange(1, 5, dtype=np.float32).tobytes().hex()
    assert [out.split() for out, _ in outputs] == [[expected] * 2] * 3, outputs
    assert len(list((tmp_path / "cache/v1/entries").iterdir())) == 1


def mixed_model(folder: Path) -> Path:
    """y = tanh(x @ w) + 1, which null and cpu run together where null refuses the Tanh."""
    text = """g (float[n, 64] x) => (float[n, 64] y) <float one = {1}>
        { a = MatMul(x, w) b = Tanh(a) y = Add(b, one) }"""
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    return written(folder / "mixed.onnx", text, w=w)


@needs_cpu
@pytest.mark.parametrize(
    "kills", [1, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(2400)])]
)
def test_a_builder_that_is_killed_leaves_nothing_that_is_believed(tmp_path, builder, kills) -> None:
    """Of compiled forms, lowered ones, partitions, and what models share."""
    mindir = Path(__file__).parents[1] / "data/mindir/lenet_bn.mindir"
    paths = [models.external(tmp_path), mindir, mixed_model(tmp_path)]
    folder = tmp_path / "cache"
    random = np.random.default_rng(0)
    out, err = builder(folder, paths, 1, "off").communicate(timeout=120)
    expected = out.split()
    assert len(expected) == 3, err
    child = builder(folder, paths, 10**6)
    for _ in range(kills):
        assert child.stdout is not None
        first = child.stdout.readline()  # it has built all; the entries are there
        assert first.split() == expected, child.stderr and child.stderr.read()
        # So that the next ones write again, killed at a random moment of that.
        shutil.rmtree(folder / "v1" / "entries", ignore_errors=True)
        (folder / "v1" / "entries").mkdir(mode=0o700, exist_ok=True)
        with suppress(subprocess.TimeoutExpired):
            child.wait(random.uniform(0, 0.3))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        child = builder(folder, paths, 10**6)
    child.kill()
    child.communicate()
    out, err = builder(folder, paths, 2).communicate(timeout=120)
    assert out.split() == expected * 2, err
    store = Store(folder)
    kinds = {entry.identity.key["backend"].partition(",")[0] for entry in store.entries()}
    assert kinds == {"cpu", "null", "(lowered)", "(partition"}
    for entry in store.entries():
        store.verify(entry, anew=True)
    store.prune(10**12)
    assert list((folder / "v1/building").iterdir()) == []
    for entry in store.entries():
        with store.locked(entry.folder.name, wait=False) as is_free:
            assert is_free


def test_prune_removes_what_was_unused_for_longest(tmp_path, load, cache) -> None:
    paths = [models.affine(tmp_path), models.several(tmp_path), models.scalar(tmp_path)]
    for path in paths:
        load(path).close()
    store = Store(cache.parents[1])
    entries = {Path(entry.title).name: entry for entry in store.entries()}
    for age, name in enumerate(("several.onnx", "scalar.onnx", "affine.onnx")):
        record = entries[name].folder / "entry.json"
        os.utime(record, (1000 - age, 1000 - age))
    newest, middle, oldest = (entries[n] for n in ("several.onnx", "scalar.onnx", "affine.onnx"))
    removed = store.prune(newest.nbytes + middle.nbytes)
    assert [Path(entry.title).name for entry in removed] == ["affine.onnx"]
    assert oldest.folder not in list(cache.iterdir())
    assert len(store.prune(0)) == 2
    assert list(cache.iterdir()) == []
    assert list((cache.parent / "locks").iterdir()) == []


def test_prune_leaves_an_entry_that_is_being_opened(tmp_path, load, cache) -> None:
    load(models.affine(tmp_path)).close()
    store = Store(cache.parents[1])
    [entry] = store.entries()
    with store.locked(entry.folder.name, shared=True):
        assert store.prune(0) == []
    assert len(store.prune(0)) == 1


def test_a_model_goes_on_when_its_entry_is_pruned(tmp_path, load, cache) -> None:
    with load(models.affine(tmp_path)) as model:
        Store(cache.parents[1]).prune(0)
        [y] = model(x=X).values()
        np.testing.assert_array_equal(y, Y)


def test_entries_are_private_to_the_user(tmp_path, load, cache) -> None:
    load(models.affine(tmp_path)).close()
    for path in cache.parent.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_record_says_what_an_entry_is_of(path, load, cache) -> None:
    load(path).close()
    [record] = cache.glob("*/entry.json")
    said = json.loads(record.read_text())
    assert said["title"] == str(path)
    assert said["key"]["backend"] == "null"
    own = {f"null: {name}": text for name, text in null.engine_compiled_key(None).items()}
    assert said["key"].items() >= own.items()


def test_what_backends_share_is_pruned_by_its_age_like_entries(tmp_path, load, cache) -> None:
    load(models.affine(tmp_path)).close()
    store = Store(cache.parents[1])
    [entry] = store.entries()
    folder = store.shared("gpu_trt")
    files = {name: folder / name for name in ("old.cache", "new.cache")}
    (folder / "kernels").mkdir()
    files["deep"] = folder / "kernels" / "deep.o"
    for name, used in (("old.cache", 1000), ("deep", 2000), ("new.cache", time.time() + 60)):
        files[name].write_bytes(bytes(100))
        os.utime(files[name], (used, used))
    with store.sharing():  # a backend writes to it
        assert store.prune(entry.nbytes + 250) == []
        assert all(file.exists() for file in files.values())
    assert store.prune(entry.nbytes + 250) == []
    assert [name for name, file in files.items() if file.exists()] == ["new.cache", "deep"]
    assert store.prune(100) == [entry]
    assert not files["deep"].exists()


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
