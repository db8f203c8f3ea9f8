"""A .mindir is lowered once per machine: what the cache gives again is what was lowered."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import engine
import engine_mindir
from engine.errors import ModelError
from engine.formats import ModelFile, OpenedSource, code, lowered
from engine.types import ModelSource
from engine.weights.compile_cache import CompileCache, Mode
from engine.weights.digests import Digests
from engine.weights.identity import model_digest
from engine.weights.lowered import LoweredForms
from engine.weights.store import Store
from engine_mindir import digest_of, storage
from engine_mindir import opening as lowering

FILES = Path(__file__).parents[3] / "tests" / "data" / "mindir"
W = np.arange(20_000, dtype=np.float32)  # larger than what is written into the ONNX model
DATA = b"\x01" + bytes(63) + W.tobytes()

Open = Callable[..., OpenedSource]


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """An element for each time that something is lowered."""
    done: list[object] = []
    lower = lowering.lower

    def counted(*arguments: Any) -> Any:
        done.append(arguments[0])
        return lower(*arguments)

    monkeypatch.setattr(lowering, "lower", counted)
    return done


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Open a file with a cache of the test's own."""
    forms = LoweredForms(CompileCache(tmp_path / "cache"))

    def opened(path: Path, *variable: str, **keywords: Any) -> OpenedSource:
        file = ModelFile(path, variable_weights=variable, **keywords)
        file.keep_in(lambda: forms)
        return file()

    return opened


def assert_same(warm: OpenedSource, cold: OpenedSource) -> None:
    for name in ("format", "path", "data", "folder", "graph", "is_secret", "folds_too_much"):
        assert getattr(warm, name) == getattr(cold, name), name
    assert warm.versions == cold.versions
    assert {k: bytes(v) for k, v in warm.files.items()} == {
        k: bytes(v) for k, v in cold.files.items()
    }
    for slots, others in ((warm.state, cold.state), (warm.variables, cold.variables)):
        assert [slot[:3] for slot in slots] == [slot[:3] for slot in others]
        for slot, other in zip(slots, others, strict=True):
            assert slot.initial.dtype == other.initial.dtype
            np.testing.assert_array_equal(slot.initial, other.initial)
            assert slot.initial.flags.writeable


@pytest.mark.parametrize("name", ["mlp", "lenet_bn", "matmul_256", "const_tensors"])
def test_the_second_time_nothing_is_lowered_and_all_is_the_same(
    opened: Open, count: list[object], name: str
) -> None:
    path = FILES / f"{name}.mindir"
    first, second = opened(path), opened(path)
    assert len(count) == 1
    assert_same(second, first)
    assert_same(second, ModelFile(path)())


def test_who_lowers_a_file_knows_the_digest_that_later_ones_find(
    opened: Open, tmp_path: Path
) -> None:
    path = FILES / "matmul_256.mindir"
    first, second = opened(path), opened(path)
    (tmp_path / "digests").mkdir()
    digests = Digests(tmp_path / "digests")
    assert first.digest == second.digest == model_digest(digests, ModelFile(path)())


def test_variable_weights_are_kept_and_others_are_another_entry(
    opened: Open, count: list[object]
) -> None:
    path = FILES / "mlp.mindir"
    first = opened(path, "fc1.weight")
    assert_same(opened(path, "fc1.weight"), first)
    assert len(count) == 1
    assert [slot.name for slot in first.variables] == ["fc1.weight"]
    assert opened(path).variables == ()
    assert len(count) == 2


def test_state_is_kept_and_begins_as_in_the_file(
    mindir: SimpleNamespace, tmp_path: Path, null_backend: str, count: list[object]
) -> None:
    add = mindir.node("AssignAdd", ["total", "x"], "y")
    total = mindir.tensor("total", np.full(2, 5, np.float32))
    path = tmp_path / "counter.mindir"
    path.write_bytes(mindir.net([add], {"x": (2,)}, {"y": (2,)}, parameters=[total]))
    common = {"model_cache_dir": str(tmp_path / "cache"), "compile_cache": "on"}
    for _ in range(2):
        with engine.load(path, null_backend, config={"common_context": common}) as model:
            for expected in (6, 7):
                [y] = model(x=np.ones(2, np.float32)).values()
                assert y.tolist() == [expected, expected]
    assert len(count) == 1


def test_a_file_of_the_same_content_is_the_same_entry_wherever_it_lies(
    opened: Open, count: list[object], tmp_path: Path
) -> None:
    opened(FILES / "mlp.mindir")
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(FILES / "mlp.mindir", tmp_path / "elsewhere/mlp.mindir")
    source = opened(Path(copy))
    assert len(count) == 1
    assert source.name == str(copy)
    assert source.folder == tmp_path / "elsewhere"


def test_a_file_that_is_replaced_is_lowered_anew(
    opened: Open, count: list[object], tmp_path: Path
) -> None:
    path = tmp_path / "net.mindir"
    shutil.copy(FILES / "mlp.mindir", path)
    opened(path)
    os.replace(shutil.copy(FILES / "lenet_bn.mindir", tmp_path / "other"), path)
    assert opened(path).graph == ModelFile(FILES / "lenet_bn.mindir")().graph


def test_other_code_that_lowers_makes_other_entries(
    opened: Open, count: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(FILES / "mlp.mindir")
    monkeypatch.setattr(lowered, "lowering_version", lambda version: "another")
    opened(FILES / "mlp.mindir")
    assert len(count) == 2


def test_the_version_of_the_lowering_covers_each_module_that_it_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(code.ROOT / "formats", tmp_path / "formats")
    monkeypatch.setattr(code, "ROOT", tmp_path)
    seen = set()
    for name in ("lowered.py", "onnx/writer.py", "variable.py"):
        with (tmp_path / "formats" / name).open("a") as file:
            file.write("# changed\n")
        code.digest_of_code.cache_clear()
        seen.add(lowered.lowering_version("1"))
    seen.add(lowered.lowering_version("2"))
    code.digest_of_code.cache_clear()
    assert len(seen) == 4


def test_the_version_of_the_format_covers_each_module_of_the_package(tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(Path(engine_mindir.__file__).parent, package)
    seen = {digest_of(package)}
    assert seen == {engine_mindir.FORMAT.version}
    for name in ("lower.py", "primitives/arithmetic.py"):
        with (package / name).open("a") as file:
            file.write("# changed\n")
        seen.add(digest_of(package))
    assert len(seen) == 3


def test_models_in_memory_are_kept_too(
    tmp_path: Path, null_backend: str, count: list[object]
) -> None:
    data = (FILES / "mlp.mindir").read_bytes()
    common = {"model_cache_dir": str(tmp_path / "cache"), "compile_cache": "on"}
    context = engine.Context()
    context.target = [null_backend]
    for _ in range(2):
        model = engine.Model()
        model.build_from_buffer(data, context=context, config_dict={"common_context": common})
        model.close()
    assert len(count) == 1


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.READ])
def test_a_cache_that_is_off_or_only_read_gets_nothing(
    tmp_path: Path, count: list[object], mode: Mode
) -> None:
    for _ in range(2):
        file = ModelFile(FILES / "mlp.mindir")
        file.keep_in(lambda: LoweredForms(CompileCache(tmp_path / "cache", mode)))
        file()
    assert len(count) == 2
    assert list(tmp_path.glob("cache/v1/entries/*")) == []


def test_small_files_are_lowered_each_time_where_no_folder_is_named(
    tmp_path: Path, count: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "default"))
    for least in (1 << 20, 1 << 20, 1, 1):
        monkeypatch.setattr("engine.weights.lowered.MIN_BYTES", least)
        file = ModelFile(FILES / "lenet_bn.mindir")
        file.keep_in(lambda: LoweredForms(CompileCache()))
        file()
    assert len(count) == 3


def test_what_was_encrypted_is_kept_nowhere(tmp_path: Path, opened: Open) -> None:
    pytest.importorskip("cryptography")
    from engine.formats.encryption import encrypt

    key = bytes(range(16))
    path = tmp_path / "secret.mindir"
    path.write_bytes(encrypt((FILES / "mlp.mindir").read_bytes(), key))
    assert opened(path, dec_key=key).is_secret
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def split(mindir: SimpleNamespace, tmp_path: Path) -> Path:
    """y = x * w + c; w is in data_0, c in the file."""
    (tmp_path / "data_0").write_bytes(DATA)
    path = tmp_path / "net.mindir"
    path.write_bytes(mindir.split(len(W)))
    return path


def test_weights_in_data_files_are_not_copied_into_the_cache(
    split: Path, opened: Open, count: list[object], tmp_path: Path
) -> None:
    assert_same(opened(split), opened(split))
    assert len(count) == 1
    [weights] = tmp_path.glob("cache/v1/entries/*/form/weights.bin")
    assert weights.stat().st_size == W.nbytes  # c alone


def test_a_model_in_a_hub_s_cache_is_kept_until_its_links_lead_elsewhere(
    split: Path, opened: Open, count: list[object], tmp_path: Path
) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file, blob in ((split, blobs / "0a1b"), (tmp_path / "data_0", blobs / "2c3d")):
        file.rename(blob)
        (snapshot / file.name).symlink_to(f"../../blobs/{blob.name}")
    assert_same(opened(snapshot / split.name), opened(snapshot / split.name))
    assert len(count) == 1
    (blobs / "4e5f").write_bytes(DATA[:64] + (W * 2).tobytes())
    (snapshot / "data_0").unlink()
    (snapshot / "data_0").symlink_to("../../blobs/4e5f")
    opened(snapshot / split.name)
    assert len(count) == 2


def test_data_files_that_change_are_another_model(
    split: Path, opened: Open, count: list[object], tmp_path: Path, caplog: Any
) -> None:
    stores = Store(tmp_path / "cache")
    before = model_digest(stores.digests, opened(split))
    (tmp_path / "data_0").write_bytes(DATA[:64] + (W * 2).tobytes())
    cold = opened(split)
    assert len(count) == 2
    warm = opened(split)
    assert len(count) == 2
    assert warm.digest == model_digest(stores.digests, cold) != before
    assert caplog.text == ""  # it is nobody's fault


def test_what_is_wrong_with_a_model_is_not_said_to_be_the_caches_fault(
    split: Path, opened: Open, count: list[object], tmp_path: Path, caplog: Any
) -> None:
    (tmp_path / "data_0").unlink()
    (tmp_path / "data_0").symlink_to("data_0")  # its error has an OSError for a cause
    for _ in range(2):
        with pytest.raises(ModelError, match="data_0"):
            opened(split)
    assert caplog.text == ""


def test_a_disk_that_is_full_costs_only_the_entry(
    opened: Open, count: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lowered, "write", fail)
    assert_same(opened(FILES / "mlp.mindir"), ModelFile(FILES / "mlp.mindir")())
    assert list(tmp_path.glob("cache/v1/*/*/form")) == []


def test_a_data_file_that_is_gone_is_the_error_that_it_is_without_a_cache(
    split: Path, opened: Open, tmp_path: Path
) -> None:
    opened(split)
    (tmp_path / "data_0").unlink()
    with pytest.raises(ModelError, match="'data_0', which is not there"):
        opened(split)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of files of this size stay in them."""
    monkeypatch.setattr(storage, "SMALL_BYTES", 1000)
    monkeypatch.setattr(lowering, "SMALL_BYTES", 1000)


def test_the_tensors_of_a_large_file_stay_in_it(
    large: None, opened: Open, count: list[object], tmp_path: Path
) -> None:
    path = tmp_path / "net.mindir"
    shutil.copy(FILES / "lenet_bn.mindir", path)
    first, second = opened(path), opened(path)
    assert list(second.versions) == [path]
    assert_same(second, first)
    path.rename(tmp_path / "other.mindir")  # the lowered model names it
    third = opened(tmp_path / "other.mindir")
    assert third.graph is not None
    assert "other.mindir" in {info.location for info in third.graph.parameters}
    assert len(count) == 2


def test_a_file_that_changes_while_it_is_loaded_is_refused(
    large: None, opened: Open, tmp_path: Path, null_backend: str
) -> None:
    """Warm as cold: what was found is of the version that was opened."""
    path = tmp_path / "net.mindir"
    shutil.copy(FILES / "lenet_bn.mindir", path)
    opened(path)
    file = ModelFile(path)
    file.keep_in(lambda: LoweredForms(CompileCache(tmp_path / "cache")))
    assert file.kind == "mindir"  # it is open now
    shutil.copy(FILES / "lenet_bn.mindir", tmp_path / "next")
    os.utime(tmp_path / "next", (1, 1))
    os.replace(tmp_path / "next", path)
    with pytest.raises(ModelError, match="changed while it was loaded"):
        file().check_unchanged()


def test_a_damaged_entry_is_lowered_anew_and_said(
    opened: Open, count: list[object], tmp_path: Path, caplog: Any
) -> None:
    path = FILES / "lenet_bn.mindir"
    cold: ModelSource = opened(path)
    [entry] = tmp_path.glob("cache/v1/entries/*")
    names = [file.relative_to(entry) for file in entry.rglob("*") if file.is_file()]
    assert {name.name for name in names} >= {"model.onnx", "weights.bin", "lowered.json"}
    for number, (name, how) in enumerate(
        ((name, how) for name in names for how in ("emptied", "flipped", "zeros", "gone")), 2
    ):
        file = entry / name
        data = bytearray(file.read_bytes())
        if how == "flipped":
            data[len(data) // 2] ^= 1 if name.name != "entry.json" else 0x80
        file.unlink()
        if how != "gone":
            file.write_bytes({"emptied": b"", "zeros": bytes(len(data))}.get(how, data))
        caplog.clear()
        assert opened(path).data == cold.data
        assert len(count) == number, f"{name} {how} was believed"
        assert "its entry in the compile cache is not used" in caplog.text


def test_an_entry_that_is_whole_but_says_nonsense_is_lowered_anew(
    opened: Open, count: list[object], tmp_path: Path
) -> None:
    """Its writer is believed no more than its content holds."""
    import hashlib

    path = FILES / "lenet_bn.mindir"
    cold = opened(path)
    [entry] = tmp_path.glob("cache/v1/entries/*")
    whole = json.loads((entry / "form/lowered.json").read_text())
    texts = [
        "[]", "{}", "7",
        json.dumps(whole | {"files": {name: [0, 1 << 40] for name in whole["files"]}}),
        json.dumps(whole | {"files": {name: [-8, 4] for name in whole["files"]}}),
        json.dumps(whole | {"files": {}}),
        json.dumps(whole | {"state": [["s", "float33", 0, 4, 1]]}),
        json.dumps(whole | {"outside": {"../elsewhere": ["../elsewhere", 4]}}),
        json.dumps(whole | {"outside": {"mlp.mindir": ["mlp.mindir", 4]}}),
    ]  # fmt: skip
    for number, text in enumerate(texts, 2):
        [entry] = tmp_path.glob("cache/v1/entries/*")
        file = entry / "form/lowered.json"
        file.write_text(text)
        record = json.loads((entry / "entry.json").read_text())
        record["files"]["lowered.json"] = hashlib.sha256(text.encode()).hexdigest()
        (entry / "entry.json").write_text(json.dumps(record))
        assert_same(opened(path), cold)
        assert len(count) == number, f"{text[:80]} was believed"
