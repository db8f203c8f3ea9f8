"""Passes of other packages: applied when they are switched on, checked, and part of the key."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import engine
from engine.backends.doors import PASSES
from engine.formats import ModelFile
from engine.weights.digests import Digests
from engine.weights.identity import identify
from engine_testing import models
from engine_testing.plugins import install

TRIPLE = """
import numpy as np
import onnx

class Triple:
    version = "1"

    def rewrite(self, model):
        proto = onnx.load_model_from_string(model)
        for tensor in proto.graph.initializer:
            if tensor.name == "two":
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(3), "two"))
        return proto.SerializeToString()

PASS = Triple()
"""
X = np.arange(3, dtype=np.float32).reshape(1, 3)

Offer = Callable[..., None]


@pytest.fixture
def offer(plugin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offer]:
    def offer(name: str, source: str = TRIPLE, *, is_on: bool = True) -> None:
        install(plugin_folder, name, f"pass_{name}:PASS", group=PASSES.group, source=source)
        if is_on:
            monkeypatch.setenv("ENGINE_PASSES", name)

    yield offer
    for name in [name for name in sys.modules if name.startswith("pass_")]:
        del sys.modules[name]


def predicted(path: Path) -> np.ndarray:
    with engine.load(path, target="null") as model:
        return np.asarray(model(x=X)["y"])


pytestmark = pytest.mark.usefixtures("null_backend")


def test_a_pass_that_is_switched_on_rewrites_the_model(offer: Offer, tmp_path: Path) -> None:
    offer("triple")
    np.testing.assert_array_equal(predicted(models.affine(tmp_path)), 3 * X + 1)


def test_a_pass_that_is_off_is_not_imported(offer: Offer, tmp_path: Path) -> None:
    offer("triple", "raise SystemExit('imported')", is_on=False)
    np.testing.assert_array_equal(predicted(models.affine(tmp_path)), 2 * X + 1)


def test_the_name_and_version_of_a_pass_are_part_of_the_key(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.affine(tmp_path)
    digests = Digests(tmp_path / "digests")
    plain = identify(digests, {}, ModelFile(path)())
    offer("triple", TRIPLE.replace("return proto.SerializeToString()", "return None"))
    first = ModelFile(path)()
    assert first.passes == ("triple 1",)
    monkeypatch.setattr(sys.modules["pass_triple"].PASS, "version", "2", raising=False)
    second = ModelFile(path)()
    keys = [plain, identify(digests, {}, first), identify(digests, {}, second)]
    assert len({str(key) for key in keys}) == 3


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_library", "pass 'triple' is broken: .*no_such_library"),
        (TRIPLE.replace('version = "1"', ""), "cannot serve as pass: it has no version"),
        (TRIPLE.replace("proto = onnx", "1 / 0; proto = onnx"), "it raised ZeroDivisionError"),
        (TRIPLE.replace("return proto.SerializeToString()", "return b'nonsense'"), "its result is"),
        (
            TRIPLE.replace("return proto", "del proto.graph.output[0]; return proto"),
            "its result is|it changed the model's inputs or outputs",
        ),
        (
            TRIPLE.replace("return proto", "proto.graph.input[0].name = 'z'; return proto"),
            "its result is|it changed the model's inputs or outputs",
        ),
    ],
)
def test_a_pass_that_fails_is_named_and_leaves_no_model(
    offer: Offer, tmp_path: Path, source: str, said: str
) -> None:
    offer("triple", source)
    with pytest.raises(engine.ModelError, match=said):
        ModelFile(models.affine(tmp_path))()


def test_a_name_that_no_package_offers_is_an_error(
    offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer("triple", is_on=False)
    monkeypatch.setenv("ENGINE_PASSES", "tripel")
    with pytest.raises(engine.ModelError, match=r"'tripel', but pass 'tripel' is not installed"):
        ModelFile(models.affine(tmp_path))()


def test_the_pass_of_the_reader_is_named_where_it_has_made_a_model_regular(tmp_path: Path) -> None:
    import onnx

    proto = onnx.load(models.several(tmp_path))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.float32), "twice"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.float32), "twice"))
    path = tmp_path / "twice.onnx"
    path.write_bytes(proto.SerializeToString())
    assert ModelFile(path)().passes == ("regular 1",)
    assert ModelFile(models.several(tmp_path))().passes == ()
