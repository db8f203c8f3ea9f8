"""Compare a model of another batch size with the original, sample by sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import gcd
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, ValueInfoProto

from engine.converter.graphs import spec_of
from engine.converter.job import Job
from engine.converter.sample_inputs import FLOATS, random
from engine.plan.open_sizes import fitting_shapes
from engine.types import DType

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

ERROR = 1e-3
"""Largest difference between results, as a part of an output's largest value."""

HALF_ERROR = 1e-2
"""The same for outputs in float16 and bfloat16."""

OPEN = 8
"""The size, in a run, of dims that a model leaves open and of which nothing tells more."""


class Comparison:
    """Comparison of two models on random samples: all for the larger batch, some for the other."""

    def __init__(
        self, given: Sequence[ValueInfoProto], batches: Mapping[str, tuple[int, int]]
    ) -> None:
        """given: what a caller gives. batches: by input, its first axis in either model."""
        chance = np.random.default_rng(0)
        self._few, self._all = sorted(gcd(*sizes) for sizes in zip(*batches.values(), strict=True))
        # Inputs may have several rows for each sample.
        self._rows = {name: max(sizes) // self._all for name, sizes in batches.items()}
        specs = [replace(spec, shape=spec.shape or ()) for spec in map(spec_of, given)]
        shapes = next(fitting_shapes(specs, size=OPEN))
        for name, rows in self._rows.items():
            shapes[name] = (rows * self._all, *shapes[name][1:])
        self._inputs = {spec.name: random(spec.dtype, shapes[spec.name], chance) for spec in specs}
        # 1 shows what depends on a sample's place in the batch, also where that has a period.
        self._starts = sorted({0, 1, self._all - self._few})

    def run(
        self,
        model: ModelProto,
        weights: Iterable[TensorProto],
        few: bool,
        folder: Path | None,
        job: Job,
    ) -> list[Arrays]:
        """Return the outputs of a model: on the few samples from each start, or once on all.

        model: a light one. weights: its own; where these refer to a file, it is in `folder`, and
            the model is written there too.
        Raises what building and calling a model raise.
        """
        from engine.runtime.extensions import in_trial

        return in_trial(lambda: self._run(model, weights, few, folder, job))

    def _run(
        self,
        model: ModelProto,
        weights: Iterable[TensorProto],
        few: bool,
        folder: Path | None,
        job: Job,
    ) -> list[Arrays]:
        from engine.model import Model, ModelType
        from engine.weights.compile_cache import UNCACHED

        whole = ModelProto()
        whole.CopyFrom(model)
        for tensor in weights:
            whole.graph.initializer.add().CopyFrom(tensor)
        content = bytes(whole.SerializeToString())
        del whole
        with Model() as built:
            if folder is None:
                built.build_from_buffer(content, config_dict=UNCACHED, cancel=job.cancel)
            else:
                file = folder / "model.onnx"
                file.write_bytes(content)
                built.build_from_file(
                    str(file), ModelType.MINDIR, config_dict=UNCACHED, cancel=job.cancel
                )
            del content
            if not few:
                return [built(**self._inputs)]
            results = []
            for start in self._starts:
                job.cancel.check()
                results.append(built(**self._part(start)))
            return results

    def _part(self, start: int) -> Arrays:
        return {
            name: array[start * self._rows[name] : (start + self._few) * self._rows[name]]
            if name in self._rows
            else array
            for name, array in self._inputs.items()
        }

    def difference(self, one: list[Arrays], other: list[Arrays]) -> str:
        """Describe how two runs differ, one of them on all samples; "" where they agree."""
        parts, [whole] = (one, other) if len(one) > 1 else (other, one)
        for start, part in zip(self._starts, parts, strict=True):
            for name, few in part.items():
                mismatch = self._compared(few, whole[name], start)
                if mismatch:
                    return f"output {name!r} {mismatch}"
        if all(np.array_equal(parts[0][name], parts[-1][name], equal_nan=True) for name in whole):
            return "random samples all give the same, so nothing can be compared"
        return ""

    def _compared(self, few: object, everything: object, start: int) -> str:
        if not isinstance(few, np.ndarray) or not isinstance(everything, np.ndarray):
            return "is no tensor and cannot be compared"
        small, large, count = few.shape, everything.shape, self._few
        # An axis of another size has rows of each sample, those of one side by side.
        if few.ndim != everything.ndim or any(
            a != b and (a % count or a // count * self._all != b) for a, b in zip(small, large)
        ):
            return f"is of shape {small} for {count} and of {large} for {self._all}"
        rows = tuple(
            slice(None) if a == b else slice(start * a // count, start * a // count + a)
            for a, b in zip(small, large)
        )
        same = everything[rows]
        if DType.from_numpy(few.dtype) not in FLOATS:
            wrong = np.count_nonzero(few != same)
            return f"has {wrong} of {few.size} values that differ" if wrong else ""
        one, other = few.astype(np.float64), same.astype(np.float64)
        largest = np.abs(one, where=np.isfinite(one), out=np.zeros_like(one)).max(initial=0)
        error = (ERROR if few.dtype.itemsize > 2 else HALF_ERROR) * largest
        if np.allclose(one, other, rtol=0, atol=error, equal_nan=True):
            return ""
        with np.errstate(invalid="ignore"):
            off = np.nanmax(np.abs(one - other), initial=0)
        return (
            f"differs by {off:.3g} (its values go to {largest:.3g}), as if its samples were not "
            "independent"
        )
