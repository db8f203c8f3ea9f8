"""`engine cache`: what is in the compile cache, why a build is cold, what is damaged, what goes."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from graphs import written

import engine
from engine.backends import installed
from engine.formats.encryption import encrypt
from engine.weights import writing
from engine.weights.locks import locked
from engine.weights.store import TURN, Store
from engine_testing import models


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one entry."""
    monkeypatch.setenv("ENGINE_CACHE", "on")
    folder = tmp_path / "cache"
    engine.load(
        models.affine(tmp_path), config={"common_context": {"model_cache_dir": str(folder)}}
    ).close()
    return folder


def test_a_read_only_cache_is_listed_explained_and_verified(cli, folder, tmp_path, make_read_only):
    make_read_only(folder)
    here = ("--folder", folder)
    model = tmp_path / "affine.onnx"
    assert "1 entry" in cli("cache", *here).out
    assert "is warm" in cli("cache", "why", model, *here).out
    assert "1 verified, 0 damaged" in cli("cache", "verify", *here).out
    [entry] = (folder / "v1/entries").iterdir()
    other = models.several(tmp_path)
    for more in ((other,), (model, "--set", "cpu_context.graph_optimization=none")):
        said = cli("cache", "why", *more, *here).text
        assert "is cold: it" in said
        assert f"it stays cold: '{folder}/v1' is read-only" in said
    assert "1 kept" in cli("cache", "prune", "--max-size", "0", *here).out
    assert entry.exists()


def test_what_is_damaged_in_a_read_only_cache_is_named(cli, folder, tmp_path, make_read_only):
    [graph] = folder.glob("v1/entries/*/form/model.onnx")
    graph.write_bytes(graph.read_bytes()[::-1])
    make_read_only(folder)
    done = cli("cache", "verify", "--folder", folder)
    assert done.status == 1
    assert "is damaged (model.onnx is not what was written" in " ".join(done.err.split())
    said = cli("cache", "why", tmp_path / "affine.onnx", "--folder", folder).text
    assert "its entry is damaged: model.onnx" in said
    assert "it stays cold" in said


def test_an_emptied_cache_that_is_read_only_is_listed_and_explained(
    cli, folder, tmp_path, make_read_only
):
    here = ("--folder", folder)
    assert cli("cache", "prune", "--max-size", "0MB", *here).status == 0
    make_read_only(folder)
    assert "no entries" in cli("cache", "ls", *here).out
    assert "it stays cold" in cli("cache", "why", tmp_path / "affine.onnx", *here).text


def test_the_entries_are_listed_with_their_sizes(cli, folder, tmp_path):
    done = cli("cache", "ls", "--folder", folder, "--json")
    assert done.status == 0
    [entry] = done.json["entries"]
    assert entry["model"] == str(tmp_path / "affine.onnx")
    files = (folder / "v1/entries" / entry["entry"] / "form").iterdir()
    assert entry["bytes"] == done.json["bytes"] == sum(file.stat().st_size for file in files)
    shown = cli("cache", "--folder", folder)
    assert "affine.onnx" in shown.out
    assert "1 entry" in shown.out


def test_an_empty_cache_says_so(cli, tmp_path):
    assert "no entries" in cli("cache", "--folder", tmp_path).out


def test_why_says_that_the_cache_is_off(cli, folder, tmp_path, monkeypatch):
    command = ("cache", "why", tmp_path / "affine.onnx", "--folder", folder)
    off = "--set", "common_context.compile_cache=off"
    assert "the next build is cold: the compile cache is off" in cli(*command, *off).text
    monkeypatch.setenv("ENGINE_CACHE", "off")
    assert cli(*command, "--json").json["warm"] is False
    assert cli(*command, "--set", "common_context.compile_cache=on", "--json").json["warm"] is True
    monkeypatch.setenv("ENGINE_CACHE", "of")
    assert "did you mean 'off'?" in cli(*command).err


def test_why_tells_a_warm_build_from_a_cold_one(cli, folder, tmp_path):
    model = tmp_path / "affine.onnx"
    assert cli("cache", "why", model, "--folder", folder, "--json").json["warm"] is True
    cold = cli(
        "cache", "why", model, "--folder", folder, "--set", "cpu_context.graph_optimization=none",
        "--json",
    ).json  # fmt: skip
    assert cold["warm"] is False
    [other] = cold["others"]
    # Without optimisation nothing is rewritten either.
    assert sorted(other["differs"]) == ["cpu: options", "cpu: rewrites"]
    other = models.several(tmp_path)
    said = cli("cache", "why", other, "--folder", folder)
    assert "the next build is cold: it has no entry: its weights are" in said.text


def test_why_refuses_a_misspelt_setting(cli, folder, tmp_path):
    misspelt = ("--set", "cpu_context.graph_optimizatio=extended")
    done = cli("cache", "why", tmp_path / "affine.onnx", "--folder", folder, *misspelt)
    assert done.status == 2
    assert "did you mean 'graph_optimization'" in " ".join(done.err.split())


def test_why_speaks_of_the_build_that_would_be(cli, folder, tmp_path, monkeypatch):
    model = tmp_path / "affine.onnx"

    def reason(*more: object) -> str:
        said = cli("cache", "why", model, "--folder", folder, "--json", *more).json
        assert said["warm"] is False
        return str(said["reason"])

    isolated = ("--set", "common_context.isolate=true")
    assert cli("cache", "why", model, "--folder", folder, "--json", *isolated).json["warm"]
    assert "is off" in reason("--set", "common_context.compile_cache=off")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(folder))
    here = cli("cache", "why", model, "--json").json
    assert "are kept only where [common_context] model_cache_dir" in here["reason"]
    monkeypatch.setenv("ENGINE_CACHE", "off")
    assert "is off" in reason()


def test_why_of_an_encrypted_model_needs_no_key(cli, folder, tmp_path, monkeypatch):
    model = tmp_path / "affine.onnx"
    model.write_bytes(encrypt(model.read_bytes(), b"0123456789abcdef"))
    command = ("cache", "why", model, "--folder", folder)
    reason = "the next build is cold: it is encrypted, and nothing of such a model is kept"
    assert reason in cli(*command).text
    monkeypatch.setenv("ENGINE_DEC_KEY", b"0123456789abcdef".hex())
    assert reason in cli(*command).text


def test_why_heeds_the_target_of_the_environment(cli, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_TARGET", "absent_backend")
    cli("cache", "why", tmp_path / "affine.onnx", "--folder", folder).fails("absent_backend")


def test_verify_removes_an_entry_whose_record_is_damaged(cli, folder):
    [record] = folder.glob("v1/entries/*/entry.json")
    record.write_text("[" * 100_000)
    done = cli("cache", "verify", "--folder", folder, "--json").json
    assert (done["verified"], len(done["damaged"])) == (1, 1)
    assert list((folder / "v1/entries").iterdir()) == []


def test_verify_removes_what_is_damaged(cli, folder):
    assert "1 verified, 0 damaged" in cli("cache", "verify", "--folder", folder).out
    [graph] = folder.glob("v1/entries/*/form/model.onnx")
    graph.write_bytes(graph.read_bytes()[::-1])
    done = cli("cache", "verify", "--folder", folder, "--json").json
    assert len(done["damaged"]) == 1
    assert cli("cache", "--folder", folder, "--json").json["entries"] == []


@pytest.mark.parametrize("size", ["0", "0.1kb", "0.5 MB", "20GB"])
def test_prune_frees_what_is_more_than_a_size(cli, folder, size):
    done = cli("cache", "prune", "--max-size", size, "--folder", folder, "--json").json
    kept = size in ("0.5 MB", "20GB")
    assert done["kept"] == kept
    assert len(done["removed"]) == (not kept)
    assert (done["freed_bytes"] > 0) is not kept


def test_prune_says_that_more_stays_than_fits(cli, folder):
    command = ("cache", "prune", "--max-size", "0", "--folder", folder)
    [entry] = (folder / "v1/entries").iterdir()
    with locked(folder / "v1/locks" / entry.name, shared=True):  # somebody opens it
        done = cli(*command)
    assert "0 removed (0 bytes), 1 kept" in done.out
    assert "note: more is kept than fits: it is being opened or written" in done.err
    assert cli(*command).err == ""


def test_a_size_that_is_none_is_wrong_usage(cli, folder):
    done = cli("cache", "prune", "--max-size", "20", "--folder", folder)
    assert done.status == 2
    assert "--max-size: expected a size with its unit, such as 20GB" in " ".join(done.err.split())
    done = cli("cache", "prune", "--max-size", "lots", "--folder", folder)
    assert done.status == 2
    assert "--max-size: expected a size such as 500MB or 20GB, got 'lots'" in " ".join(
        done.err.split()
    )


def test_a_run_makes_no_entry(cli, folder, tmp_path, monkeypatch):
    monkeypatch.delenv("ENGINE_CACHE")
    setting = f"common_context.model_cache_dir={folder}"
    assert cli("run", models.several(tmp_path), "--set", setting).status == 0
    assert len(cli("cache", "--folder", folder, "--json").json["entries"]) == 1


def test_a_folder_that_cannot_be_used_is_one_line(cli, tmp_path):
    (tmp_path / "v1").write_text("")
    done = cli("cache", "--folder", tmp_path).fails("the compile cache cannot be used")
    assert "Traceback" not in done.err


def test_what_target_auto_has_tried_is_shown(cli, tmp_path, monkeypatch):
    monkeypatch.delenv("ENGINE_CACHE")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    others = ",".join(set(installed()) - {"cpu"})
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", others)
    path = models.affine(tmp_path)
    nothing = cli("cache", "choices", path)
    assert "nothing is kept; a build with target auto tries the backends" in nothing.out
    assert cli("cache", "choices", path, "--json").json["choices"] == []
    assert cli("run", path, "--target", "auto", "--threads", "1").status == 0
    [choice] = cli("cache", "choices", path, "--json").json["choices"]
    assert choice["default"]["targets"] == ["cpu"]
    assert choice["trials"][0]["nodes"] == {"cpu": 2}
    assert "onnxruntime" in choice["key"]["backend cpu"]
    shown = cli("cache", "choices", path).out
    assert choice["reason"] in shown
    assert "error" not in shown
    assert cli("run", path, "--target", "auto", "--threads", "1").status == 0
    assert len(cli("cache", "choices", path, "--json").json["choices"]) == 1
    allowed = ("--set", "common_context.max_error=0.01")
    assert cli("run", path, "--target", "auto", "--threads", "1", *allowed).status == 0
    assert "error" in cli("cache", "choices", path).out
    choices = cli("cache", "choices", path, "--json").json["choices"]
    [last] = [choice for choice in choices if "max_error" in choice["key"]["common"]]
    tried = {trial["setup"]["sections"]["cpu_context"].get("arithmetic", ""): trial["error"]
             for trial in last["trials"] if trial["setup"]["sections"]}  # fmt: skip
    assert 0 <= tried["bfloat16"] < 1e-6, "cpu always computes exactly"


def test_a_choice_that_is_made_again_says_when(cli, tmp_path, monkeypatch):
    monkeypatch.delenv("ENGINE_CACHE")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    path = models.affine(tmp_path)
    no_time = ("--set", "common_context.auto_budget_s=1e-9")
    assert cli("run", path, "--target", "auto", "--threads", "1", *no_time).status == 0
    assert re.search(r"builds after 20\d\d-\d\d-\d\d \d\d:\d\d try again",
                     cli("cache", "choices", path).out)  # fmt: skip


def test_a_choice_of_an_encrypted_model_is_in_no_file(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("ENGINE_CACHE", "on")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", ",".join(set(installed()) - {"cpu"}))
    key = bytes(range(32))
    secret = tmp_path / "secret.onnx"
    secret.write_bytes(encrypt(models.affine(tmp_path).read_bytes(), key))
    config = {"common_context": {"auto_budget_s": "1"}}
    with engine.load(secret, target="auto", dec_key=key, config=config) as model:
        assert model.placement[0].backend == "cpu"
    assert cli("cache", "--json").json["entries"] == []
    assert list((tmp_path / "cache").rglob("evidence.json")) == []


def test_wait_returns_when_nothing_is_being_written_any_more(cli, folder) -> None:
    store = Store(folder)
    lock = store.folder / "locks" / "of-a-writer"
    is_written = threading.Event()

    def write() -> None:
        with locked(lock):
            began.set()
            time.sleep(0.3)
            is_written.set()

    began = threading.Event()
    writer = threading.Thread(target=write)
    writer.start()
    began.wait()
    shown = cli("cache", "wait", "--folder", folder)
    assert is_written.is_set()
    assert "1 entry" in shown.out
    writer.join()
    assert len(cli("cache", "wait", "--folder", folder, "--json").json["entries"]) == 1


def test_why_names_an_entry_that_is_being_written(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ENGINE_CACHE", "on")
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "cache"))
    path = large_model(tmp_path)
    with Store(tmp_path / "cache").locked(TURN):  # no writer has its turn meanwhile
        engine.load(path, "cpu").close()
        assert "a process is writing its entry" in cli("cache", "why", path, "--target", "cpu").text
    assert writing.wait(120)
    assert "is warm" in cli("cache", "why", path, "--target", "cpu").text


def large_model(folder: Path) -> Path:
    """y = x @ w, with 8 MiB of weights, from which on a model is kept."""
    text = "g (float[n, 2048] x) => (float[n, 1024] y) { y = MatMul(x, w) }"
    return written(folder / "large.onnx", text, w=np.ones((2048, 1024), np.float32))
