"""Compiled forms: what is written, what a warm load takes from it, what is refused. Emulated."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import BackendUnavailable, CompiledFormError
from engine.formats import open_source
from engine.types import ModelSource
from engine_ascend_ge import atc, engine_compiled_key
from engine_testing import models

Start = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for a compiled form."""
    folder = tmp_path / "form"
    folder.mkdir()
    return folder


@pytest.fixture
def source(path: Path) -> ModelSource:
    """y = 2x + 1."""
    return open_source(path)


@pytest.fixture
def start(backend: Any, options: Any) -> Any:
    """start(source, **fields) -> (loaded's inputs and outputs, executable), closed in the end."""
    executables = []

    def make(source: ModelSource, **fields: Any) -> tuple[Any, Any]:
        wish = options(**fields)
        loaded = backend.load(source, wish)
        signature = (loaded.inputs, loaded.outputs, loaded.unsupported)
        try:
            executable = backend.compile(loaded, wish)
        finally:
            loaded.close()
        executables.append(executable)
        return signature, executable

    yield make
    for executable in executables:
        executable.close()


@pytest.mark.parametrize("kind", ["fixed", "gears", "ranges", "open"])
def test_a_warm_model_is_the_cold_one_and_atc_does_not_run(
    start: Start,
    is_affine: Any,
    source: ModelSource,
    folder: Path,
    sized: Any,
    geared: Any,
    atc_runs: Any,
    kind: str,
) -> None:
    fields = {
        "fixed": sized(x=(4, 3)),
        "gears": geared({"x": (2, 3)}, {"x": (4, 3)}),
        "ranges": sized(x=((2, 4), 3)),
        "open": {},
    }[kind]
    cold_signature, cold = start(source, save_to=folder, **fields)
    assert atc_runs() == 1
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"model.om", "model.json"}
    # Whatever is parsed again would fail: there is nothing left of the model but its graph.
    gone = Path("gone.onnx")
    warm_source = replace(source, path=gone, data=None, folder=None, compiled=folder)
    warm_signature, warm = start(warm_source, **fields)
    assert atc_runs() == 1
    assert warm_signature == cold_signature
    assert (warm.inputs, warm.outputs) == (cold.inputs, cold.outputs)
    assert warm.inputs[0].shape[0] == (4 if kind == "fixed" else "batch")
    assert list(warm.placement()) == list(cold.placement())
    assert warm.memory() == cold.memory()
    for executable in (cold, warm):
        is_affine(executable.open_context(), np.arange(12, dtype=np.float32).reshape(4, 3))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_without_a_folder_nothing_is_kept(start: Start, source: Any, folder: Path) -> None:
    start(source)
    assert list(folder.iterdir()) == []


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def edit(folder: Path, **changes: Any) -> None:
    notes = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**notes, **changes}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model.om").unlink(), "cannot be read"),
        (lambda folder: (folder / "model.json").unlink(), "cannot be read"),
        (lambda folder: (folder / "model.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "model.json").write_text("[]"), r"model\.json is not of form 2"),
        (lambda folder: (folder / "model.om").write_bytes(b"IMOD"), "has 4 bytes, expected"),
        (lambda folder: flip(folder / "model.om", -1), "another checksum"),
        (lambda folder: flip(folder / "model.om", 500), "another checksum"),
        (lambda folder: edit(folder, form=1), "not of form 2"),
        (lambda folder: edit(folder, inputs=[["z", "float32[1]"]]), "it has the inputs"),
        (lambda folder: edit(folder, shapes=3), "no shapes that can be read"),
    ],
)
def test_a_form_that_is_not_as_it_was_written_is_refused(
    start: Start, machine: Any, source: Any, folder: Path, damage: Any, message: str
) -> None:
    _, cold = start(source, save_to=folder)
    cold.close()
    damage(folder)
    with pytest.raises(CompiledFormError, match=message):
        start(replace(source, compiled=folder))
    assert machine.live() == {}


def test_the_form_of_another_model_is_refused(
    start: Start, source: Any, tmp_path: Path, folder: Path
) -> None:
    start(source, save_to=folder)
    with pytest.raises(CompiledFormError, match="it has the inputs"):
        start(replace(open_source(models.several(tmp_path)), compiled=folder))


def test_a_form_that_the_device_refuses_is_none(
    start: Start, machine: Any, source: Any, folder: Path
) -> None:
    _, cold = start(source, save_to=folder)
    cold.close()
    machine.soc = "Ascend310P3"
    with pytest.raises(CompiledFormError, match=r"cannot be loaded.*soc_version is invalid"):
        start(replace(source, compiled=folder))
    machine.soc = "Ascend910B3"
    machine.memory_bytes = 0
    with pytest.raises(BackendUnavailable, match="the device is full"):
        start(replace(source, compiled=folder))
    assert machine.live() == {}


def test_kernels_are_shared_in_the_folder_for_it(start: Start, source: Any, tmp_path: Path) -> None:
    assert atc.kernel_cache(tmp_path) == {
        "op_compiler_cache_mode": "enable",
        "op_compiler_cache_dir": str(tmp_path),
    }
    assert atc.kernel_cache(tmp_path / "a b") == {}, "ATC refuses the path"
    assert atc.kernel_cache(None) == {}
    start(source, cache_folder=tmp_path)


@pytest.fixture
def key(machine: Any, options: Any) -> Callable[..., dict[str, str]]:
    def make(**fields: Any) -> dict[str, str]:
        return dict(engine_compiled_key(options(**fields)))

    return make


def test_the_key_is_text_and_says_version_and_soc(key: Any, tmp_path: Path, machine: Any) -> None:
    (tmp_path / "cann" / "version.cfg").write_text("toolkit_running_version=[8.2.RC1]\n")
    text = key()
    assert all(isinstance(part, str) for item in text.items() for part in item)
    assert text["SoC"] == "Ascend910B3"
    assert text["CANN"] == "8.2.RC1"
    assert text == key()
    assert machine.calls["rt.set_device"] == 0, "it is cheap: no device is opened"


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    assert set(one) == set(other)
    return {name for name in one if one[name] != other[name]}


def test_what_changes_the_form_changes_the_key(
    key: Any, sized: Any, geared: Any, tmp_path: Path, machine: Any
) -> None:
    plain = key()
    gears = geared({"x": (2, 3)}, {"x": (4, 3)})
    switches = tmp_path / "fusion.cfg"
    switches.write_text("{}")
    fusion = {"fusion_switch_config_file_path": str(switches)}
    for fields, names in (
        ({"precision": "enforce_fp16"}, {"flags"}),
        ({"set": {"deterministic": "1"}}, {"flags"}),
        ({"set": {"soc_version": "Ascend910B4"}}, {"SoC"}),
        ({"set": {"atc": "/opt/atc"}}, {"atc"}),
        ({"set": fusion}, {"flags", "fusion switches"}),
        (sized(x=(4, 3)), {"shapes"}),
        (gears, {"shapes", "profiles"}),
    ):
        assert differing(plain, key(**fields)) == names
    before = key(set=fusion)
    switches.write_text('{"Switch": {}}')
    assert differing(before, key(set=fusion)) == {"fusion switches"}
    (tmp_path / "cann" / "version.cfg").write_text("version=9\n")
    machine.soc = "Ascend310P3"
    assert differing(plain, key()) == {"CANN", "SoC"}


def test_what_does_not_change_the_form_does_not_change_the_key(key: Any, tmp_path: Path) -> None:
    plain = key()
    for fields in (
        {"resident": frozenset({"y"})},
        {"plan": "p", "save_to": tmp_path, "cache_folder": tmp_path},
        {"set": {"compile_timeout_s": "5", "concurrency": "1", "op_compiler_cache_mode": "force"}},
    ):
        assert key(**fields) == plain


def test_a_bad_option_is_named_by_the_key_too(key: Any) -> None:
    with pytest.raises(ValueError, match="deterministic"):
        key(set={"deterministic": "yes"})


def test_users_own_om_files_need_no_form(
    start: Start, is_affine: Any, make_om: Any, path: Path, folder: Path, atc_runs: Any
) -> None:
    source = ModelSource(format="om", path=make_om(path, input_shape="x:2,3"))
    for fields in ({"save_to": folder}, {}):
        _, executable = start(source, **fields)
        is_affine(executable.open_context(), np.ones((2, 3), np.float32))
    assert list(folder.iterdir()) == []
    assert atc_runs() == 0
