"""Faults of compiled forms."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import CompiledFormError, InputError
from faulty import Faulty, caught_by


class Remembers(Faulty):
    """Knows of each executable which source and options it came from."""

    def load(self, source, options):
        loaded = super().load(source, options)
        loaded.source, loaded.options = source, options
        return loaded

    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        executable.notes.update(source=loaded.source, options=loaded.options)
        return executable


@caught_by("test_a_compiled_form_gives_the_same_model", says="another placement")
class ForgetsThePlacement(Remembers):
    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        if loaded.source.compiled is not None:
            executable.placement = list
        return executable


@caught_by("test_a_compiled_form_gives_the_same_model", says="load gives other inputs")
class ForgetsTheSymbols(Faulty):
    def load(self, source, options):
        loaded = super().load(source, options)
        if source.compiled is not None:
            loaded.inputs = tuple(replace(spec, shape=(None, 3)) for spec in loaded.inputs)
        return loaded


@caught_by("test_a_compiled_form_gives_the_same_model", says="other bits")
class RoundsWhatItWrites(Remembers):
    def predict(self, context, inputs, outputs, deadline_s):
        [y, *others] = super().predict(context, inputs, None, deadline_s)
        if context.executable.notes["source"].compiled is not None and isinstance(y, np.ndarray):
            y = np.nextafter(y, np.float32(np.inf), dtype=y.dtype)
        return [y, *others]


@caught_by(
    "test_an_executable_goes_on_when_its_form_is_moved_and_removed", says="No such file",
)  # fmt: skip
class ReadsItsFormWhenItRuns(Remembers):
    def predict(self, context, inputs, outputs, deadline_s):
        folder = context.executable.notes["source"].compiled
        if folder is not None:
            os.listdir(folder)
        return super().predict(context, inputs, outputs, deadline_s)


@caught_by("test_a_compiled_form_is_written_once", says="was changed after it was written")
class NotesWhenAFormWasUsed(Faulty):
    def load(self, source, options):
        loaded = super().load(source, options)
        if source.compiled is not None:
            (source.compiled / "last_used").write_text(str(time.time()))
        return loaded


@caught_by("test_a_compiled_form_is_written_once", says="nothing was written into save_to")
class WritesNothing(Faulty):
    def load(self, source, options):
        return super().load(replace(source, compiled=None), replace(options, save_to=None))


@caught_by("test_a_damaged_form_is_refused_or_right", says="expected CompiledFormError, got")
class BelievesEveryForm(Faulty):
    """Reads without a digest what may be damaged."""

    def load(self, source, options):
        if source.compiled is not None:
            data = (source.compiled / "model.onnx").read_bytes()
            source = replace(source, compiled=None, data=data)
        return super().load(source, options)


@caught_by("test_a_damaged_form_is_refused_or_right", says="expected CompiledFormError, got")
class SaysModelErrorOfAForm(Faulty):
    def load(self, source, options):
        try:
            return super().load(source, options)
        except CompiledFormError as error:
            raise RuntimeError(str(error)) from error


@caught_by("test_a_secret_model_has_no_compiled_form", says="something of a secret model")
class SavesSecrets(Faulty):
    def load(self, source, options):
        return super().load(replace(source, is_secret=False), options)


@caught_by("test_a_key_is_text_and_equal_for_equal_options", says="assert False")
class GivesNumbersInItsKey(Faulty):
    def compiled_key(self, options):
        return {"version": 3}


@caught_by("test_a_key_is_text_and_equal_for_equal_options", says="gave different keys")
class PutsAllOptionsIntoItsKey(Faulty):
    def compiled_key(self, options):
        return {"options": repr(options)}


@caught_by("test_a_key_is_cheap", says="ms, at every build")
class CompilesForItsKey(Faulty):
    def compiled_key(self, options):
        end_s = time.thread_time() + 0.04
        while time.thread_time() < end_s:
            pass
        return super().compiled_key(options)


@caught_by("test_equal_keys_mean_exchangeable_forms", says="precision is not in the key")
class ForgetsThePrecisionInItsKey(Remembers):
    """Rounds at compile, as the precision says: it is in the form, and not in the key."""

    def load(self, source, options):
        loaded = super().load(source, options)
        loaded.precision = options.precision
        if options.save_to is not None:
            Path(options.save_to, "precision").write_text(options.precision)
        if source.compiled is not None:
            loaded.precision = Path(source.compiled, "precision").read_text()
        return loaded

    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        executable.notes["is_rounded"] = loaded.precision not in ("", "enforce_fp32")
        return executable

    def predict(self, context, inputs, outputs, deadline_s):
        results: Any = super().predict(context, inputs, outputs, deadline_s)
        if context.executable.notes["is_rounded"] and outputs is None:
            results = [y.astype(np.float16).astype(y.dtype) for y in results]
        return results


@caught_by("test_equal_keys_mean_exchangeable_forms", says="highest shape is not in the key")
class ForgetsTheHighestShapeInItsKey(Remembers):
    """Compiles for the highest shape, as an engine with profiles does, and keys by the lowest."""

    def load(self, source, options):
        loaded = super().load(source, options)
        shapes = options.shapes.get("x")
        loaded.highest = shapes.highest[0] if shapes is not None else None
        if options.save_to is not None:
            Path(options.save_to, "highest").write_text(str(loaded.highest))
        if source.compiled is not None:
            loaded.highest = int(Path(source.compiled, "highest").read_text())
        return loaded

    def compile(self, loaded, options):
        executable = super().compile(loaded, options)
        executable.notes["highest"] = loaded.highest
        return executable

    def compiled_key(self, options):
        shapes = options.shapes.get("x")
        lowest = str(shapes.lowest) if shapes is not None else ""
        return {**super().compiled_key(options), "lowest": lowest}

    def predict(self, context, inputs, outputs, deadline_s):
        highest = context.executable.notes["highest"]
        if highest is not None and len(inputs[0]) > highest:
            raise InputError(f"input 'x': expected at most {highest} rows, got {len(inputs[0])}")
        return super().predict(context, inputs, outputs, deadline_s)
