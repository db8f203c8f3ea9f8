"""engine.load takes a model as users have it, and its options from files of several formats."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import engine
from engine.config.reader import read_config
from engine.errors import ModelError
from engine_testing import models

X = np.ones((1, 3), np.float32)


def runs(model: object, target: str, **options: Any) -> bool:
    with engine.load(model, target=target, **options) as loaded:  # type: ignore[arg-type]
        return bool((loaded.predict([X])[0].get_data_to_numpy() == 3).all())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """y = 2x + 1, x float32[batch, 3]."""
    return models.affine(tmp_path)


# ------------------------------------------------------------------------------------ the model


def test_a_model_in_memory_is_bytes_a_file_or_a_proto(path: Path, null_backend: str) -> None:
    data = path.read_bytes()
    assert runs(data, null_backend)
    assert runs(bytearray(data), null_backend)
    assert runs(memoryview(data), null_backend)
    assert runs(io.BytesIO(data), null_backend)
    assert runs(onnx.load(path), null_backend)
    with path.open("rb") as file:
        assert runs(file, null_backend)


def test_what_is_no_model_is_refused_by_its_type(path: Path) -> None:
    for other in (7, None, [str(path)], onnx):
        with pytest.raises(TypeError, match="model must be a path, bytes, an open binary file or"):
            engine.load(other)  # type: ignore[arg-type]
    path.write_bytes(b"\xc9" + path.read_bytes())  # no text in UTF-8
    for encoding in ("latin-1", "utf-8"):
        with path.open(encoding=encoding) as text, pytest.raises(TypeError, match=r"\(path, 'rb'"):
            engine.load(text)  # type: ignore[arg-type]
    with path.open("rb") as file:
        file.read()
        with pytest.raises(ModelError, match="what is left to read in the model's file: empty"):
            engine.load(file)


class Module:
    """A module, as torch has them."""

    def forward(self) -> None: ...
    def state_dict(self) -> None: ...


class ONNXProgram:
    """A stand-in for the result of torch.onnx.export."""

    @property
    def model_proto(self) -> None:
        raise AssertionError("building it may take long")


class Huge:
    """A proto that no bytes can hold."""

    def SerializeToString(self) -> bytes:
        raise ValueError("Message onnx.ModelProto exceeds maximum protobuf size of 2GB")


@pytest.mark.parametrize(
    ("thing", "kind", "said"),
    [
        (Module(), TypeError, r"Module'>. Export it: torch\.onnx\.export\(model, "),
        ({"weight": X}, TypeError, r"Export it: torch\.onnx\.export\(model"),
        (ONNXProgram(), TypeError, r"ONNXProgram'>. Pass its \.model_proto$"),
        (Huge(), ModelError, r"maximum protobuf size.*save_as_external_data=True"),
        ("https://host/a.onnx", ModelError, r"https://host/a\.onnx: is an address"),
    ],
)
def test_what_is_no_model_is_told_how_it_becomes_one(
    thing: Any, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        engine.load(thing)


def test_compare_tells_what_is_no_model_as_load_does(path: Path) -> None:
    with pytest.raises(TypeError, match=r"^b must be .* path, but got .*Module'>. Export it: tor"):
        engine.compare(path, Module())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^a must be a built model or a path, but got <class 'in"):
        engine.compare(7)  # type: ignore[arg-type]


def test_bytes_may_be_encrypted(path: Path, null_backend: str) -> None:
    from engine.formats.encryption import encrypt

    key = b"0123456789abcdef"
    sealed = encrypt(path.read_bytes(), key)
    assert runs(sealed, null_backend, dec_key=key)
    with pytest.raises(ModelError, match="encrypted with AES-GCM; pass its key: dec_key"):
        engine.load(sealed, target=null_backend)


def test_a_folder_stands_for_the_one_model_in_it(
    path: Path, null_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = path.parent / "hub"
    (hub / "onnx").mkdir(parents=True)
    (hub / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="hub: is a folder without a model"):
        engine.load(hub, target=null_backend)
    (hub / "onnx" / "any.onnx").write_bytes(path.read_bytes())
    assert runs(hub, null_backend)
    (hub / "onnx" / "other.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match=r"has 2: 'any.onnx', 'other.onnx'; give the path of one"):
        engine.load(hub, target=null_backend)
    (hub / "onnx" / "model.onnx").write_bytes(path.read_bytes())  # beside quantized ones, say
    assert runs(f"{hub}/", null_backend)
    monkeypatch.setenv("HOME", str(path.parent))
    assert runs("~/hub", null_backend)
    assert runs(Path("~/affine.onnx"), null_backend)


def test_external_data_in_a_folder_is_found(tmp_path: Path, null_backend: str) -> None:
    proto = onnx.load(models.affine(tmp_path))
    hub = tmp_path / "hub"
    hub.mkdir()
    onnx.save(
        proto, hub / "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    assert (hub / "w.bin").stat().st_size
    assert runs(hub, null_backend)
    with pytest.raises(ModelError, match="has no folder to find it in; give the model"):
        engine.load((hub / "model.onnx").read_bytes(), target=null_backend)


def test_a_missing_file_is_caught_as_python_s_own_error_and_names_what_is_near(
    path: Path, null_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    for caught in (FileNotFoundError, engine.EngineError, RuntimeError):
        with pytest.raises(caught, match=r"engine.load failed, there is no file 'afine.onnx'; d"):
            engine.load("afine.onnx", null_backend)
    with pytest.raises(FileNotFoundError, match=r"did you mean 'affine.onnx'\?$") as error:
        engine.load("affine.onx", null_backend)
    assert error.value.filename == "affine.onx"
    with pytest.raises(FileNotFoundError, match=r"'whisper'; in that folder: 'affine.onnx'$"):
        engine.load("whisper", null_backend)
    with pytest.raises(FileNotFoundError, match=r"\(nor a folder 'models'\)$"):
        engine.load("models/affine.onnx", null_backend)
    (path.parent / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=f"no file '{path.parent}/empty/net.onnx'$"):
        engine.load(path.parent / "empty/net.onnx", null_backend)
    monkeypatch.chdir(path.parent / "empty")
    with pytest.raises(FileNotFoundError, match=f"no file 'net.onnx' in {path.parent}/empty$"):
        engine.load("net.onnx", null_backend)
    with pytest.raises(FileNotFoundError, match=r"config does not exist! got 'c.toml'"):
        engine.load(path, null_backend, config="c.toml")
    with pytest.raises(engine.ModelError, match="cannot be opened: File name too long"):
        engine.load("n" * 300, null_backend)


def test_every_class_that_builds_from_a_file_says_which_is_missing(path: Path) -> None:
    missing = str(path.with_name("afine.onnx"))
    said = rf"model_path does not exist! got '{missing}'; did you mean '{path}'\?"
    builds = (
        lambda: engine.Model().build_from_file(missing, engine.ModelType.MINDIR),
        lambda: engine.MultiModelRunner().build_from_file(missing, engine.ModelType.MINDIR),
        lambda: engine.ModelParallelRunner().build_from_file(missing),
        lambda: engine.MultiDeviceRunner(missing, [0]),
    )
    for build in builds:
        with pytest.raises(FileNotFoundError, match=said):
            build()
    with pytest.raises(FileNotFoundError, match=rf"there is no file .*; did you mean '{path}'\?"):
        engine.inspect(missing)


def test_a_converter_says_which_file_a_missing_one_may_be(path: Path) -> None:
    said = rf"model_file does not exist! got '.*afine.onnx'; did you mean '{path}'\?"
    with pytest.raises(engine.ModelNotFound, match=said):
        engine.Converter().convert(
            engine.FmkType.ONNX, str(path.with_name("afine.onnx")), str(path.with_name("q"))
        )


def test_a_working_folder_that_was_deleted_is_named_as_the_reason(
    null_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    said = "there is no file 'net.onnx': the working folder was deleted"
    with pytest.raises(engine.ModelNotFound, match=said):
        engine.load("net.onnx", null_backend)


# ---------------------------------------------------------------------------- the configuration


FORMS = {
    "c.toml": "[cpu_context]\nspin_us = 0\nname = 'x'\nexact = true\nratio = 0.5\n[empty]\n",
    "c.json": '{"cpu_context": {"spin_us": 0, "name": "x", "exact": true, "ratio": 0.5},'
    ' "empty": {}}',
    "c.yaml": "cpu_context:\n  spin_us: 0\n  name: x\n  exact: yes\n  ratio: 0.5\nempty: {}\n",
    "C.YML": "cpu_context: {spin_us: 0, name: x, exact: true, ratio: 0.5}\nempty: {}\n",
    "c.ini": "[cpu_context]\nspin_us = 0\nname = 'x'\nexact = 1\nratio = 0.5\n[empty]\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_a_configuration_says_the_same_in_every_format(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FORMS[name])
    assert read_config(str(tmp_path / name)) == {
        "cpu_context": {"spin_us": "0", "name": "x", "exact": "1", "ratio": "0.5"},
        "empty": {},
    }


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("c.toml", "[a]\nb = \n", r"c\.toml: .*line 2"),
        ("c.json", '{"a": {"b": 1,}}', r"c\.json: .*line 1"),
        ("c.yaml", "a: [", r"c\.yaml: .*line 1"),
        ("c.json", "[1, 2]", "must be a path or a dict of sections|must be a dict of sections"),
        ("c.toml", "a = 1", "got 'a': 1; put it into the section of what reads it"),
        ("c.json", '{"a": {"b": [1]}}', "key 'b' in section 'a' must be text with a text, number"),
        ("c.json", "[" * 100_000, "c.json: it is nested too deep"),
        ("c.yaml", "[" * 3_000, "c.yaml: it is nested too deep"),
        ("c.yaml", "!!python/object:os.system {}", r"c\.yaml: could not determine a constructor"),
    ],
)
def test_a_broken_configuration_is_one_error_that_names_the_place(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ModelError, match=f"load configuration failed! Error is .*({said})"):
        read_config(str(tmp_path / name))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# nothing yet", {}),
        (
            "a: {cache: off, x: On, isolate: yes}",
            {"a": {"cache": "off", "x": "On", "isolate": "1"}},
        ),
    ],
)
def test_on_and_off_in_yaml_are_texts_and_comments_nothing(
    text: str, found: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert read_config(os.fspath(tmp_path / "c.yaml")) == found


def test_a_typed_configuration_reaches_the_backend(path: Path, null_backend: str) -> None:
    config = path.parent / "c.toml"
    config.write_text(f"[{null_backend}_context]\ndelay_s = 0.001\n")
    assert runs(path, null_backend, config=config)


def test_a_misspelt_setting_is_told_the_nearest(
    path: Path, null_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"common_context": {"compil_cache": "off"}, "comon_context": {"isolate": False}}
    assert runs(path, null_backend, config=config)
    assert (
        "[common_context] compil_cache is unknown and not read; did you mean 'compile_cache'?"
        in (caplog.text)
    )
    assert "section [comon_context] is unknown and not read; did you mean [common_context]?" in (
        caplog.text
    )


@pytest.mark.parametrize(
    ("target", "near"),
    [
        ("cpuu", "cpu"),
        ("CPUExecutionProvider", "cpu"),
        ("CUDAExecutionProvider", "gpu"),
        ("cuda:0", "gpu"),
        ("CANNExecutionProvider", "ascend"),
        ("asend", "ascend"),
    ],
)
def test_a_misspelt_target_is_told_the_nearest(path: Path, target: str, near: str) -> None:
    with pytest.raises(ValueError, match=rf"target elements must be in .*did you mean '{near}'\?"):
        engine.load(path, target)


@pytest.mark.parametrize("argument", ["threads", "device_id"])
def test_a_bool_is_no_number(path: Path, argument: str) -> None:
    with pytest.raises(TypeError, match="must be int, but got <class 'bool'>"):
        engine.load(path, **{argument: True})  # type: ignore[arg-type]


def test_python_suggests_names_of_the_package() -> None:
    with pytest.raises(AttributeError) as error:
        engine.Modle  # type: ignore[attr-defined]  # noqa: B018
    assert (error.value.name, error.value.obj) == ("Modle", engine)  # what Python goes by


def test_a_target_that_is_no_name_is_shown_one(path: Path) -> None:
    with pytest.raises(TypeError, match=r"must be list, but got .*; or a name, as 'cpu' or 'gpu'"):
        engine.load(path, np.float32)  # type: ignore[arg-type]
