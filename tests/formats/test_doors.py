"""Formats of other packages: found by content, checked as a file is, and none stops another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import engine
from engine import formats
from engine.backends import doors
from engine.backends.doors import FORMATS
from engine.formats import ModelFile
from engine.formats.recognised import recognised
from engine.weights.compile_cache import CompileCache
from engine.weights.lowered import LoweredForms
from engine_testing import models
from engine_testing.plugins import install

MARK = b"AFFINE:"
HEAD = f"""
from engine.errors import ModelError
from engine.types import ModelSource

MARK = {MARK!r}
opened = []

class Format:
    def recognises(self, head):
        return head.startswith(MARK)

    def open(self, file):
        opened.append(file)
        return ModelSource(format="onnx", data=bytes(file.data)[len(MARK):])
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file of the format: the mark, and what comes behind it."""

    def write(content: bytes | None = None) -> Path:
        path = tmp_path / "model.affine"
        content = models.affine(tmp_path).read_bytes() if content is None else content
        path.write_bytes(MARK + content)
        return path

    return write


@pytest.fixture
def offer(plugin_folder: Path) -> Iterator[Callable[..., None]]:
    """Install a format: `extra` is the text of its class below that of HEAD."""

    def offer(name: str, extra: str = "", before: str = "") -> None:
        source = f"{before}\n{HEAD}{extra}\nFORMAT = Format()\n"
        install(plugin_folder, name, f"format_{name}:FORMAT", group=FORMATS.group, source=source)

    yield offer
    for name in [name for name in sys.modules if name.startswith("format_")]:
        del sys.modules[name]


def test_a_file_of_another_packages_format_runs(
    offer: Callable[..., None], write: Write, null_backend: str
) -> None:
    offer("affine")
    path = write()
    assert formats.recognise(path) == "affine"
    model = engine.load(path, target=null_backend)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(model(x=x)["y"], 2 * x + 1)
    assert [str(spec) for spec in model.inputs] == ["float32[batch, 3]"]


def test_a_model_in_memory_runs_too(
    offer: Callable[..., None], write: Write, null_backend: str
) -> None:
    offer("affine")
    model = engine.load(write().read_bytes(), target=null_backend)
    np.testing.assert_array_equal(model(x=np.zeros((1, 3), np.float32))["y"], np.ones((1, 3)))


def test_onnx_is_never_asked_of_another_format(
    offer: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer("greedy", "    recognises = lambda self, head: True\n")
    monkeypatch.setattr(doors, "entry_points", lambda *_: pytest.fail("looked for formats"))
    assert ModelFile(models.affine(tmp_path))().graph is not None


def test_what_a_format_gives_is_checked_as_a_file_is(
    offer: Callable[..., None], write: Write
) -> None:
    offer("affine")
    with pytest.raises(engine.ModelError, match=r"model\.affine: (damaged|not a valid) ONNX"):
        ModelFile(write(b"\x08\x0a\x3a\xff"))()


def test_weights_of_such_a_file_can_be_declared_variable(
    offer: Callable[..., None], tmp_path: Path, write: Write
) -> None:
    offer("affine")
    plain = ModelFile(models.affine(tmp_path))()
    assert plain.graph is not None
    names = [weight.name for weight in plain.graph.parameters]
    file = ModelFile(write(), variable_weights=(names[0],))
    assert [slot.name for slot in file().variables] == [names[0]]
    assert file.with_constants().graph == plain.graph


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("    def open(self, file):\n        1 / 0\n", "format 'bad' failed: ZeroDivisionError"),
        ("    def open(self, file):\n        return None\n", "format 'bad' gave None"),
        (
            "    def open(self, file):\n        return ModelSource(format='onnx')\n",
            "format 'bad' gave no ONNX model",
        ),
        (
            "    def open(self, file):\n        raise ModelError('byte 7 is odd')\n",
            "^byte 7 is odd$",
        ),
    ],
)
def test_an_error_of_a_format_names_it(
    offer: Callable[..., None], write: Write, extra: str, said: str
) -> None:
    offer("bad", extra)
    with pytest.raises(engine.ModelError, match=said):
        ModelFile(write())()


def test_broken_formats_stop_no_other(
    offer: Callable[..., None], write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    offer("a_torn", before="import no_such_library")
    offer("b_raising", "    def recognises(self, head):\n        1 / 0\n")
    offer("z_affine")
    assert ModelFile(write()).kind == "z_affine"
    assert ModelFile(write())().graph is not None
    said = [record.message for record in caplog.records]
    assert said == [
        "format 'b_raising' is not used: recognises raised ZeroDivisionError: division by zero"
    ]


def test_a_file_that_no_format_recognises_is_what_it_was_without(
    offer: Callable[..., None], tmp_path: Path
) -> None:
    offer("affine")
    path = tmp_path / "archive.zip"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(engine.ModelError, match="is a zip archive"):
        ModelFile(path)()


def test_a_format_with_a_version_is_asked_once_for_each_content_and_version(
    offer: Callable[..., None], write: Write, tmp_path: Path
) -> None:
    offer("kept", "    version = '1'\n")
    forms = LoweredForms(CompileCache(tmp_path / "cache"))

    def opened() -> None:
        file = ModelFile(path)
        file.keep_in(lambda: forms)
        source = file()
        assert source.data == models.affine(tmp_path).read_bytes()

    path = write()
    opened()
    opened()
    module = sys.modules["format_kept"]
    assert len(module.opened) == 1
    module.Format.version = "2"
    opened()
    assert len(module.opened) == 2


def test_a_format_without_a_version_is_asked_each_time(
    offer: Callable[..., None], write: Write, tmp_path: Path
) -> None:
    offer("plain")
    for _ in range(2):
        file = ModelFile(write())
        file.keep_in(lambda: LoweredForms(CompileCache(tmp_path / "cache")))
        file()
    assert len(sys.modules["format_plain"].opened) == 2


def test_without_its_package_a_mindir_names_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "entry_points", lambda *_: iter(()))
    monkeypatch.setattr("sys.path", [*sys.path])
    path = tmp_path / "net.mindir"
    path.write_bytes(b"\x0a\x051.2.3\x12\x09MindSpore\x3a\x00")
    assert recognised(path.read_bytes()) is None
    with pytest.raises(
        engine.ModelError,
        match=r"net\.mindir: is a MindIR model; .*pip install (-e .*|inference-engine-)mindir",
    ):
        ModelFile(path)()


def test_a_broken_mindir_package_is_named_with_its_reason(
    plugin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(plugin_folder, "mindir", "no_such_module:FORMAT", group=FORMATS.group)
    points = [p for p in doors.points(FORMATS) if p.value.startswith("no_such_module")]
    monkeypatch.setattr(doors, "entry_points", lambda *_: iter(points))
    path = tmp_path / "net.mindir"
    path.write_bytes(b"\x0a\x051.2.3\x12\x09MindSpore\x3a\x00")
    with pytest.raises(engine.ModelError, match=r"format 'mindir' is broken: .*no_such_module"):
        ModelFile(path)()


def test_the_kind_of_a_file_that_is_not_encrypted_needs_no_key_and_takes_one(
    offer: Callable[..., None], write: Write, tmp_path: Path
) -> None:
    offer("affine")
    for path, kind in ((models.affine(tmp_path), "onnx"), (write(), "affine")):
        assert ModelFile(path, dec_key=bytes(16)).kind == kind
