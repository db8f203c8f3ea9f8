"""A partition is made once: the second build asks no backend and cuts nothing."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from plan_models import Config, external, refusing, save

import engine
from engine.backends import find_target, open_backend
from engine.formats import code, open_source
from engine.plan import extract
from engine.plan.mixed import partition_cache
from engine.plan.options import BuildOptions
from engine.report.cache_state import explain
from engine.weights.compile_cache import CompileCache
from engine_testing import null_run

pytestmark = pytest.mark.usefixtures("second")

Install = Callable[..., ModuleType]
X = np.linspace(-1, 1, 7, dtype=np.float32)
Y = np.tanh(-X) + np.float32(2)
Load = Callable[..., engine.Model]
NO_TANH = refusing(null="Tanh")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """y = tanh(-x) + 2; also a node that no output needs."""
    nodes = "a = Neg(x); b = Tanh(a); unread = Abs(b); y = Add(b, two)"
    return save(tmp_path, nodes, constants={"two": np.float32(2)})


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINE_CACHE", "on")
    return tmp_path / "cache/v1/entries"


@pytest.fixture
def load(entries: Path) -> Load:
    """Build on null, which refuses every Tanh, and on second, with a cache of the test's own."""

    def load(
        path: Path, target: Any = ("null", "second"), config: Config = NO_TANH, **common: str
    ) -> engine.Model:
        folder = str(entries.parents[1])
        sections = {**config, "common_context": {"model_cache_dir": folder, **common}}
        return engine.load(path, target=[*target], config=sections)

    return load


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """An element for each time that a model is taken apart."""
    done: list[object] = []
    init = extract.Whole.__init__

    def counted(self: Any, source: Any) -> None:
        done.append(source)
        init(self, source)

    monkeypatch.setattr(extract.Whole, "__init__", counted)
    return done


def said(model: engine.Model) -> tuple[object, ...]:
    """Return a model's description and outputs."""
    [y] = model(x=X).values()
    np.testing.assert_allclose(y, Y, rtol=1e-6)
    specs = [(spec.name, spec.dtype, spec.shape) for spec in model.inputs]
    return model.placement, specs, model.outputs, y.tobytes()


def test_the_second_build_asks_and_cuts_nothing_and_is_the_same(
    path: Path, second: ModuleType, load: Load, cuts: list[object], caplog: Any, monkeypatch: Any
) -> None:
    with load(path) as model:
        cold = said(model)
    asked = len(second.loads)
    assert (len(cuts), asked) == (1, 1)
    caplog.clear()
    monkeypatch.setattr("engine.formats.onnx.infer.types_of", None)
    for count in (2, 3):
        with load(path) as model:
            assert said(model) == cold
        assert len(second.loads) == count  # it has no compiled forms, so its part is compiled
    assert len(cuts) == 1
    assert [text for text in caplog.messages if "cache" in text] == []
    with load(path) as model:
        assert "backend 'null' cannot run it" in model.placement[1].reason


def test_parts_are_read_in_compiled_form(
    path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(path).close()

    def compile_anew(*arguments: object) -> None:
        raise AssertionError("a part was compiled that has a form")

    read: list[Path] = []
    whole = null_run.read_compiled
    monkeypatch.setattr(null_run, "write_compiled", compile_anew)
    monkeypatch.setattr(null_run, "read_compiled", lambda s: read.append(s.compiled) or whole(s))
    with load(path) as model:
        said(model)
    assert len(read) == 2  # what null runs before and after the Tanh


def test_what_the_user_did_not_list_is_said_at_each_build(
    path: Path, load: Load, install: Install, caplog: Any
) -> None:
    install("first", completed_by=("second",))
    texts = []
    for _ in range(2):
        caplog.clear()
        with load(path, ["first"], refusing(first="Tanh")) as model:
            said(model)
        texts.append(caplog.messages)
    assert texts[0] == texts[1]
    assert any("1 of 4 nodes run on backend 'second'" in text for text in texts[1])


def test_a_model_that_the_second_runs_whole_is_not_shown_to_the_first_again(
    path: Path, second: ModuleType, load: Load, install: Install, cuts: list[object]
) -> None:
    first = install("first")
    config = refusing(first="Neg,Tanh,Abs,Add")
    placements = []
    for _ in range(2):
        with load(path, ["first", "second"], config) as model:
            placements.append(said(model))
    assert (len(first.loads), len(second.loads)) == (1, 2)
    assert placements[0] == placements[1]
    assert cuts == []


@pytest.mark.parametrize("what", ["options", "version", "targets", "code", "content"])
def test_what_a_partition_depends_on_makes_it_anew(
    path: Path, load: Load, install: Install, cuts: list[object],
    monkeypatch: pytest.MonkeyPatch, what: str,
) -> None:  # fmt: skip
    load(path).close()
    assert len(cuts) == 1
    config, target = NO_TANH, ["null", "second"]
    if what == "options":
        config = refusing(null="Tanh,Neg")
    elif what == "version":
        backend = open_backend("second")
        monkeypatch.setattr(backend, "info", replace(backend.info, version="another"))
    elif what == "targets":
        install("third")
        target = ["null", "third", "second"]
    elif what == "code":
        monkeypatch.setattr(
            "engine.plan.mixed.partition_cache.digest_of_code", lambda parts: "other"
        )
    else:
        model = onnx.load(path)
        model.graph.node[2].op_type = "Neg"
        onnx.save(model, path)
    for _ in range(2):
        with load(path, target, config) as model:
            said(model)
        assert len(cuts) == 2


def test_an_unasked_target_behind_those_that_run_it_changes_nothing(
    path: Path, load: Load, install: Install, cuts: list[object]
) -> None:
    install("third")
    load(path).close()
    load(path, ["null", "second", "third"]).close()
    assert len(cuts) == 1


@pytest.mark.parametrize("is_external", [True, False])
def test_large_weights_are_not_copied_into_the_partition(
    tmp_path: Path, load: Load, entries: Path, is_external: bool
) -> None:
    w = np.arange(1 << 18, dtype=np.float32).reshape(512, 512) / 512
    nodes = "a = MatMul(x, w); b = Tanh(a); y = Add(b, w)"
    values = "(float[512,512] x) => (float[512,512] y)"
    whole = save(tmp_path, nodes, values, {"w": w})
    if is_external:
        external(whole)
    x = np.eye(512, dtype=np.float32)
    for _ in range(2):
        with load(whole) as model:
            [y] = model(x=x).values()
        np.testing.assert_allclose(y, np.tanh(w) + w, rtol=1e-6)
    [partition] = [path.parent for path in entries.glob("*/form/partition.json")]
    assert sum(file.stat().st_size for file in partition.iterdir()) < 50_000


def test_a_model_that_changes_while_its_parts_are_compiled_is_refused(
    tmp_path: Path, second: ModuleType, load: Load
) -> None:
    """The kept partition is of what was opened, and what the backends read is compared."""
    w = np.ones((1 << 10, 1 << 10), np.float32)
    nodes = "a = MatMul(x, w); b = Tanh(a); y = Add(b, b)"
    values = "(float[n,1024] x) => (float[n,?] y)"
    whole = external(save(tmp_path, nodes, values, {"w": w}))
    load(whole).close()
    loads = second.loads

    class Replacing(list):  # type: ignore[type-arg]
        def append(self, source: object) -> None:
            data = (tmp_path / "w.bin").read_bytes()
            (tmp_path / "next").write_bytes(bytes(len(data)))
            os.replace(tmp_path / "next", tmp_path / "w.bin")
            loads.append(source)

    second.loads = Replacing()  # type: ignore[attr-defined]
    with pytest.raises(engine.ModelError, match="changed while it was loaded"):
        load(whole)


def test_a_partition_that_a_backend_does_not_take_any_more_is_made_anew(
    path: Path, load: Load, cuts: list[object], entries: Path
) -> None:
    """As where a runtime changed, and its backend's version did not."""
    load(path).close()
    [file] = entries.glob("*/form/partition.json")
    record = json.loads(file.read_text())
    for part in record["parts"]:
        part["level"] = 0  # null, which refuses the Tanh
    rewrite(file, record)
    for _ in range(2):
        with load(path) as model:
            said(model)
        assert len(cuts) == 2


def rewrite(file: Path, record: object) -> None:
    """Change a file of an entry, and what the entry says of it."""
    file.write_text(json.dumps(record))
    entry = file.parents[1] / "entry.json"
    said = json.loads(entry.read_text())
    said["files"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    entry.write_text(json.dumps(said))


@pytest.mark.parametrize("how", ["emptied", "zeros", "flipped", "gone"])
def test_a_damaged_partition_is_made_anew_and_said(
    path: Path, load: Load, cuts: list[object], entries: Path, caplog: Any,
    how: str,
) -> None:  # fmt: skip
    load(path).close()
    [partition] = [file.parents[1] for file in entries.glob("*/form/partition.json")]
    names = [file.relative_to(partition) for file in partition.rglob("*") if file.is_file()]
    assert len(names) == 5  # three parts
    for count, name in enumerate(names, 2):
        data = bytearray((partition / name).read_bytes())
        if how == "flipped":
            data[len(data) // 2] ^= 1 if name.name != "entry.json" else 0x80
        (partition / name).unlink()
        if how != "gone":
            changed = {"emptied": b"", "zeros": bytes(len(data))}.get(how, data)
            (partition / name).write_bytes(changed)
        caplog.clear()
        with load(path) as model:
            said(model)
        assert len(cuts) == count, f"{name} {how} was believed"
        assert "its partition in the compile cache is not used" in caplog.text


def test_a_partition_that_says_nonsense_is_made_anew(
    path: Path, load: Load, cuts: list[object], entries: Path
) -> None:
    load(path).close()
    [file] = entries.glob("*/form/partition.json")
    whole = json.loads(file.read_text())
    parts = whole["parts"]
    nonsense = [
        [], {}, 7,
        {**whole, "levels": [0, 1]},
        {**whole, "levels": [0, 9, 0, 0]},
        {**whole, "candidates": whole["candidates"] * 2},
        {**whole, "reasons": {"77": "none"}},
        {**whole, "parts": parts[1:]},
        {**whole, "parts": parts[::-1]},
        {**whole, "parts": [{**part, "nodes": [77]} for part in parts]},
        {**whole, "parts": [{**part, "inputs": ["q"]} for part in parts]},
        {**whole, "parts": [{**part, "level": 5} for part in parts]},
        {**whole, "parts": [{**part, "shapes": {"x": 1}} for part in parts]},
    ]  # fmt: skip
    for count, record in enumerate(nonsense, 2):
        rewrite(file, record)
        with load(path) as model:
            said(model)
        assert len(cuts) == count, f"{str(record)[:200]} was believed"


def test_why_a_build_is_warm_is_said_of_a_partition_too(
    path: Path, load: Load, entries: Path
) -> None:
    cache, backend = CompileCache(entries.parents[1]), open_backend("null")
    context = engine.Context()
    context.target = ["null", "second"]
    options = BuildOptions(context, NO_TANH).of(backend, find_target("null"), open_source(path))
    assert not explain(cache, backend, open_source(path), options).is_warm
    load(path).close()
    said = explain(cache, backend, open_source(path), options)
    assert said.is_warm
    assert "several backends" in said.reason


@pytest.mark.parametrize("mode", ["off", "read"])
def test_nothing_is_kept_where_nothing_may_be_written(
    path: Path, load: Load, entries: Path, mode: str
) -> None:
    load(path, compile_cache=mode).close()
    assert list(entries.glob("*")) == []


@pytest.mark.parametrize("folder", ["plan", "distributed", "formats/onnx"])
def test_the_code_that_makes_a_partition_is_in_its_digest(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "ROOT", tmp_path)
    found = set()
    for text in ("", "changed"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)  # the others are not there
        (tmp_path / folder / "code.py").write_text(text)
        found.add(code.digest_of_code.__wrapped__(partition_cache._CODE))
    assert len(found) == 2
