"""Level of the kit: compiled forms, written while a model is built and found before the next."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import CompiledFormError, EngineError
from engine.types import (
    Arithmetic,
    CancelToken,
    Capability,
    CompileOptions,
    Executable,
    LoadedModel,
    ModelSource,
    ShapeRange,
    Threads,
)
from engine_testing import models
from engine_testing.level import Array, Level, Running, Trial

FIXED = {"x": ShapeRange((2, 3), (2, 3), (2, 3))}
CALLS = 20


class CompiledForms(Level):
    """Capability COMPILE_CACHE."""

    @pytest.fixture
    def form(self, trial: Trial, tmp_path: Path) -> Form:
        """A model whose compiled form has been written, moved to where the core keeps it."""
        self.require(trial, Capability.COMPILE_CACHE)
        return Form(trial, tmp_path)

    def test_a_compiled_form_gives_the_same_model(self, trial: Trial, form: Form) -> None:
        [y] = form.cold.predict(form.x)
        self.assert_close(y, 2 * form.x + 1)
        warm, loaded = form.open(trial)
        cold = form.cold.executable
        assert tuple(loaded.inputs) == tuple(form.loaded[0]), "load gives other inputs"
        assert tuple(loaded.outputs) == tuple(form.loaded[1]), "load gives other outputs"
        assert dict(loaded.unsupported) == form.loaded[2], "load reports other nodes"
        for what in ("inputs", "outputs"):
            before, after = (tuple(getattr(e, what)) for e in (cold, warm.executable))
            assert after == before, f"a warm executable has other {what}"
        assert list(warm.executable.placement()) == form.placement, "another placement"
        [again] = warm.predict(form.x)
        assert isinstance(y, np.ndarray)
        assert isinstance(again, np.ndarray)
        assert again.tobytes() == y.tobytes(), "results of the compiled form have other bits"

    def test_an_executable_goes_on_when_its_form_is_moved_and_removed(
        self, trial: Trial, form: Form
    ) -> None:
        warm, _ = form.open(trial)
        shutil.rmtree(form.folder)  # as the core makes room; who has it open keeps it
        for running in (form.cold, warm, trial.context(warm.executable)):
            [y] = running.predict(form.x)
            self.assert_close(y, 2 * form.x + 1)

    def test_a_compiled_form_is_written_once(self, trial: Trial, form: Form) -> None:
        assert form.contents(), "nothing was written into save_to"
        before = form.contents()
        for _ in range(2):
            warm, _ = form.open(trial)
            warm.predict(form.x)
            warm.context.close()
            warm.executable.close()
        form.cold.context.close()
        form.cold.executable.close()
        assert form.contents() == before, "a compiled form was changed after it was written"

    @pytest.mark.parametrize("damage", ["removed", "emptied", "truncated", "flipped"])
    def test_a_damaged_form_is_refused_or_right(
        self, trial: Trial, form: Form, damage: str
    ) -> None:
        whole = form.folder.with_name("whole")
        form.folder.rename(whole)
        files = [path.relative_to(whole) for path in sorted(whole.rglob("*")) if path.is_file()]
        for name in files:
            form.folder = whole.with_name(f"damaged_{len(list(whole.parent.iterdir()))}")
            shutil.copytree(whole, form.folder)
            _damage(form.folder / name, damage)
            try:
                warm, _ = form.open(trial)
                [y] = warm.predict(form.x)
            except CompiledFormError:
                continue
            except Exception as error:
                raise AssertionError(
                    f"{name} {damage}: expected CompiledFormError, got {error!r}"
                ) from error
            self.assert_close(y, 2 * form.x + 1)

    def test_a_secret_model_has_no_compiled_form(self, trial: Trial, tmp_path: Path) -> None:
        self.require(trial, Capability.COMPILE_CACHE)
        folder = tmp_path / "secret"
        folder.mkdir()
        source = trial.source(models.affine)
        assert source.path is not None
        data = source.data if source.data is not None else source.path.read_bytes()
        secret = replace(source, path=None, data=data, is_secret=True)
        [y] = trial.open(secret, shapes=FIXED, save_to=folder).predict(np.ones((2, 3), np.float32))
        self.assert_close(y, np.full((2, 3), 3, np.float32))
        assert list(folder.iterdir()) == [], "something of a secret model was written"

    def test_a_key_is_text_and_equal_for_equal_options(self, trial: Trial) -> None:
        self.require(trial, Capability.COMPILE_CACHE)
        ask = trial.backend.bind("engine_compiled_key")
        key = dict(ask(trial.options()))
        assert key, "a compiled form depends on nothing, not even the plugin's version"
        assert all(type(name) is str and isinstance(text, str) for name, text in key.items()), key
        assert all("\n" not in text for text in key.values()), key
        again = trial.options(
            progress=lambda phase, done, total: None,
            cancel=CancelToken(),
            save_to=trial.folder,
            plan="another",
            config={"unrelated": {"a": "b"}},
        )
        for options in (trial.options(), again):
            assert dict(ask(options)) == key, "equal options gave different keys"

    def test_a_key_is_cheap(self, trial: Trial) -> None:
        self.require(trial, Capability.COMPILE_CACHE)
        ask, options = trial.backend.bind("engine_compiled_key"), trial.options()
        ask(options)
        start_s = time.thread_time()
        for _ in range(CALLS):
            ask(options)
        spent_s = (time.thread_time() - start_s) / CALLS
        assert spent_s < 0.02, f"a key takes {1000 * spent_s:.0f} ms, at every build"

    def test_equal_keys_mean_exchangeable_forms(self, trial: Trial, form: Form) -> None:
        """A form is used wherever the key is equal, so it must then give the very same model."""
        ask = trial.backend.bind("engine_compiled_key")
        key = dict(ask(form.options))
        for name, changes in _variants(trial).items():
            options = replace(form.options, **changes)
            if dict(ask(replace(options, save_to=None))) != key:
                continue
            try:
                plain, _ = _open(trial, form.source, options)
            except (EngineError, ValueError):
                continue  # not for this backend
            warm, _ = form.open(trial, **changes)
            shapes = changes.get("shapes", FIXED)["x"]
            for shape in sorted({shapes.lowest, shapes.highest}):
                x = np.resize(form.x, shape)
                [expected] = plain.predict(x)
                try:
                    [y] = warm.predict(x)
                except (EngineError, ValueError) as error:
                    raise AssertionError(
                        f"{name} is not in the key, and matters: {shape} is refused"
                    ) from error
                assert isinstance(expected, np.ndarray)
                assert isinstance(y, np.ndarray)
                assert y.tobytes() == expected.tobytes(), f"{name} is not in the key, and matters"
            assert _specs(warm.executable) == _specs(plain.executable), (
                f"{name} is not in the key, and changes what the model takes"
            )


class Form:
    """A model built cold with `save_to`, whose folder was then renamed, as the core does."""

    def __init__(self, trial: Trial, tmp_path: Path) -> None:
        self.x: Array = np.arange(6, dtype=np.float32).reshape(2, 3) / 7
        self.source: ModelSource = trial.source(models.affine)
        self.options: CompileOptions = trial.options(shapes=FIXED)
        written = tmp_path / "being_written"
        written.mkdir()
        self.cold, loaded = _open(trial, self.source, replace(self.options, save_to=written))
        self.loaded = (loaded.inputs, loaded.outputs, dict(loaded.unsupported))
        self.placement = list(self.cold.executable.placement())
        self.folder = tmp_path / "entry"
        written.rename(self.folder)

    def open(self, trial: Trial, **changes: Any) -> tuple[Running, LoadedModel]:
        """Build the model warm."""
        source = replace(self.source, compiled=self.folder)
        return _open(trial, source, replace(self.options, **changes))

    def contents(self) -> Mapping[str, tuple[int, bytes]]:
        """Return each file's time and contents, by name."""
        return {
            str(path.relative_to(self.folder)): (path.stat().st_mtime_ns, path.read_bytes())
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }


def _open(
    trial: Trial, source: ModelSource, options: CompileOptions
) -> tuple[Running, LoadedModel]:
    loaded = trial.backend.load(source, options)
    executable = trial.backend.compile(loaded, options)
    trial.close_later(executable, loaded)
    return trial.context(executable), loaded


def _specs(executable: Executable) -> tuple[object, ...]:
    return (*executable.inputs, *executable.outputs)


def _variants(trial: Trial) -> dict[str, dict[str, Any]]:
    """Return options that may or may not matter for a compiled form."""
    other = "preferred_fp16" if trial.device.type in ("cpu", "gpu", "ascend") else "any"
    return {
        "precision": {"precision": other},
        "arithmetic": {"arithmetic": Arithmetic.BFLOAT16},
        "threads": {"threads": Threads(intra_op=2)},
        "lowest shape": {"shapes": {"x": ShapeRange((1, 3), (2, 3), (2, 3))}},
        "highest shape": {"shapes": {"x": ShapeRange((2, 3), (2, 3), (4, 3))}},
    }


def _damage(path: Path, damage: str) -> None:
    data = path.read_bytes()
    if damage == "removed":
        path.unlink()
    elif damage == "emptied":
        path.write_bytes(b"")
    elif damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    else:
        middle = len(data) // 2
        flipped = bytes([data[middle] ^ 0xFF]) if data else b"\xff"
        path.write_bytes(data[:middle] + flipped + data[middle + 1 :])
