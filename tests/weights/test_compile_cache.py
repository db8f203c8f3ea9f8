"""A model is compiled once per machine, and found again: what is kept, where, and how long."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from caching import check, needs_cpu, run

import engine
from engine.weights.store import Store
from engine_testing import models, null_run
from engine_testing import null_device as null


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


def test_a_model_without_a_compiled_form_is_remembered(
    path, load, cache, store, monkeypatch
) -> None:
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
    store.prune(0)
    assert [file.name for file in (cache.parent / "formless").iterdir()] == [noted.name]
    os.utime(noted, (0, 0))
    store.prune(0)
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


def test_an_unknown_mode_is_an_error_that_lists_the_modes(path, load) -> None:
    with pytest.raises(
        ValueError, match="on, wait, read, off, but got 'raed'; did you mean 'read'"
    ):
        load(path, common_context={"compile_cache": "raed"})


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


def test_entries_are_private_to_the_user(path, load, cache) -> None:
    load(path).close()
    for place in cache.parent.rglob("*"):
        assert place.stat().st_mode & 0o077 == 0, place


def test_the_record_says_what_an_entry_is_of(path, load, cache) -> None:
    load(path).close()
    [record] = cache.glob("*/entry.json")
    said = json.loads(record.read_text())
    assert said["title"] == str(path)
    assert said["key"]["backend"] == "null"
    own = {f"null: {name}": text for name, text in null.engine_compiled_key(None).items()}
    assert said["key"].items() >= own.items()


def nothing_is_left(cache: Path) -> bool:
    return not [*cache.iterdir(), *(cache.parent / "building").iterdir()]


def test_a_cache_that_another_user_could_write_is_not_used(
    path, load, cache, compiles, caplog
) -> None:
    cache.parent.mkdir(parents=True)
    cache.parent.chmod(0o777)
    with caplog.at_level(logging.WARNING, "engine"):
        run(load(path))
    assert compiles == []
    assert "open to others" in caplog.text


def test_a_disk_that_is_full_or_read_only_means_no_cache(path, load, cache, monkeypatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    for step in ("begin", "commit"):
        with monkeypatch.context() as failing:
            failing.setattr(Store, step, fail)
            run(load(path))
    assert nothing_is_left(cache)


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
    path, load, cache, monkeypatch, caplog, is_told
) -> None:
    def fail(folder: Path, loaded: object) -> None:
        full = OSError(28, "No space left on device")
        if is_told:
            raise engine.BackendUnavailable("the compiled form cannot be written") from full
        raise full

    monkeypatch.setattr(null_run, "write_compiled", fail)
    with caplog.at_level(logging.WARNING, "engine"):
        run(load(path))
    assert "the compile cache is not written" in caplog.text
    assert nothing_is_left(cache)


def test_an_error_of_the_backend_leaves_nothing_half_made(path, load, cache, monkeypatch) -> None:
    def fail(folder: Path, loaded: object) -> None:
        (folder / "half").write_bytes(b"1")
        raise engine.ModelError("the runtime does not like it")

    with monkeypatch.context() as failing:
        failing.setattr(null_run, "write_compiled", fail)
        with pytest.raises(engine.ModelError, match="does not like it"):
            load(path)
    assert nothing_is_left(cache)
    run(load(path))


def test_a_user_without_a_home_builds_without_a_cache(path, null_backend, caplog) -> None:
    common = {"model_cache_dir": "~nobody-of-this-name/cache", "compile_cache": "on"}
    with caplog.at_level(logging.WARNING, "engine"):
        run(engine.load(path, null_backend, config={"common_context": common}))
    assert "no home folder" in caplog.text


def test_prune_removes_what_was_unused_for_longest(tmp_path, path, load, cache, store) -> None:
    for each in (path, models.several(tmp_path), models.scalar(tmp_path)):
        load(each).close()
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


def test_prune_leaves_an_entry_that_is_being_opened(path, load, store) -> None:
    load(path).close()
    [entry] = store.entries()
    with store.locked(entry.folder.name, shared=True):
        assert store.prune(0) == []
    assert len(store.prune(0)) == 1


def test_a_model_goes_on_when_its_entry_is_pruned(path, load, store) -> None:
    with load(path) as model:
        store.prune(0)
        check(model)


def test_what_backends_share_is_pruned_by_its_age_like_entries(path, load, cache, store) -> None:
    load(path).close()
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
