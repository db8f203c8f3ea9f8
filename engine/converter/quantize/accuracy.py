"""Compare a quantized model with the original, output by output."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from onnx import ModelProto

from engine.converter.job import Job, title_of
from engine.converter.quantize.calibration import Sample
from engine.converter.quantize.runtime import open_session
from engine.converter.sample_inputs import random
from engine.errors import InputError, one_line
from engine.formats.arrays import Array
from engine.plan.disagreement import disagreement_in, sizes_and_disagreement
from engine.plan.open_sizes import first_that_runs, fitting_shapes
from engine.types import TensorSpec

Accuracy = dict[str, dict[str, float]]

BEST_SNR_DB = 200.0
"""Reported where there is no difference at all; float32 itself has about 150."""

LOW = {"cosine": 0.99, "agreement": 0.9}
"""Below these an output deserves a word."""

GENERATED = 8
"""Samples that are made up where there is no data."""


@dataclass(slots=True)
class _Difference:
    """Running sums of the comparison of one output, in float64."""

    count: int = 0
    highest: float = 0.0
    absolute: float = 0.0
    noise: float = 0.0
    signal: float = 0.0
    product: float = 0.0
    own: float = 0.0
    rows: int = 0
    agreeing: int = 0
    lost: int = 0
    open: int = 0
    is_whole: bool = False
    equal: int = 0

    def add(self, wanted: Array, got: Array) -> None:
        """Count one output of one sample: whole numbers (labels, say) by whether they are equal.

        Elements that are not finite in `wanted` cannot be compared; those that are finite there
        and not in `got` are lost.
        """
        if wanted.dtype.kind in "iub":
            self.count += wanted.size
            self.equal += int((wanted == got).sum())
            self.is_whole = True
            return
        if wanted.ndim == 2 and wanted.shape[1] > 1:
            self.rows += len(wanted)
            self.agreeing += int((wanted.argmax(1) == got.argmax(1)).sum())
        is_finite = np.isfinite(wanted)
        usable = is_finite & np.isfinite(got)
        self.open += int(wanted.size - np.count_nonzero(is_finite))
        self.lost += int(np.count_nonzero(is_finite) - np.count_nonzero(usable))
        first, second = wanted[usable].astype(np.float64), got[usable].astype(np.float64)
        error = np.abs(first - second)
        self.count += error.size
        self.highest = max(self.highest, float(error.max(initial=0.0)))
        self.absolute += float(error.sum())
        self.noise += float(error @ error)
        self.signal += float(first @ first)
        self.own += float(second @ second)
        self.product += float(first @ second)

    @property
    def has_seen(self) -> bool:
        return bool(self.count or self.lost or self.open)

    def measures(self) -> dict[str, float]:
        if self.is_whole:
            return {"agreement": self.equal / self.count}
        if self.lost or not self.count:
            # No average says how far that is off; without any value nothing is known.
            worst = math.inf if self.lost else math.nan
            return {
                "max_abs_error": worst,
                "mean_abs_error": worst,
                "cosine": 0.0 if self.lost else math.nan,
                "snr_db": -worst,
                "not_finite": float(self.lost),
                "not_compared": float(self.open),
            }
        size = math.sqrt(self.signal * self.own)
        same = 1.0 if self.noise == 0 else 0.0
        result = {
            "max_abs_error": self.highest,
            "mean_abs_error": self.absolute / self.count,
            "cosine": self.product / size if size else same,
            "snr_db": min(BEST_SNR_DB, 10 * math.log10(self.signal / self.noise))
            if self.noise and self.signal
            else BEST_SNR_DB * same,
        }
        if self.rows:
            result["top1_agreement"] = self.agreeing / self.rows
        if self.open:
            result["not_compared"] = float(self.open)
        return result


def measure(
    original: ModelProto,
    quantized: ModelProto,
    read: Callable[[int], Sample],
    chosen: Sequence[int],
    job: Job,
    *,
    is_exact: bool = False,
) -> Accuracy:
    """Run both models on the same samples and compare their outputs of numbers.

    read: gives a sample by its number; chosen: which ones. is_exact: the quantized model's products
    do not saturate, as on other processors than this one.
    Raises ModelError and InputError where one of the models does not run.
    """
    models = [
        open_session(original, "the original model"),
        open_session(quantized, "the quantized model", is_exact=is_exact),
    ]
    names = [output.name for output in models[0].get_outputs()]
    sums = {name: _Difference() for name in names}
    for done, index in enumerate(chosen):
        job.cancel.check()
        job.progress("comparing", done, len(chosen))
        sample = dict(read(index))
        try:
            results = [model.run(names, sample) for model in models]
        except Exception as error:  # onnxruntime's own, of no common base
            shapes = {name: np.shape(value) for name, value in sample.items()}
            cause = disagreement_in(original, shapes)
            said = "; ".join(filter(None, (one_line(error), cause)))
            raise InputError(f"sample {index}: the model cannot run: {said}") from error
        for name, wanted, got in zip(names, *results):
            if isinstance(wanted, np.ndarray) and wanted.dtype.kind in "fiub":
                sums[name].add(wanted, got)
    job.progress("comparing", len(chosen), len(chosen))
    return {name: total.measures() for name, total in sums.items() if total.has_seen}


def doubts(accuracy: Accuracy) -> list[str]:
    """Return a note on each output that is far from the original's."""
    notes = []
    for name, measures in accuracy.items():
        if lost := measures.get("not_finite", 0.0):
            notes.append(
                f"output {name!r} has {lost:,.0f} values that are infinite or NaN where the "
                "original's are finite; try another activation_quant_method, skip_quant_node for "
                "the nodes that overflow, or WEIGHT_QUANT"
            )
        elif math.isnan(measures.get("cosine", 1.0)):
            notes.append(
                f"output {name!r} cannot be compared: the original itself gives infinite values or "
                "NaN for every element; give calibration data that it is made for"
            )
        elif any(measures.get(key, 1.0) < limit for key, limit in LOW.items()):
            values = ", ".join(
                f"{title_of(key)} {measures[key]:.3g}"
                for key in ("cosine", "snr_db", "top1_agreement", "agreement")
                if key in measures
            )
            notes.append(
                f"the accuracy of output {name!r} is low ({values}); try more calibration data, "
                "another activation_quant_method, skip_quant_node for its last layers, or "
                "WEIGHT_QUANT"
            )
    return notes


def generated(model: ModelProto, specs: Sequence[TensorSpec]) -> Callable[[int], Sample]:
    """Return samples that are made up, in shapes with which the model runs.

    Raises ModelError and InputError where it does not.
    """

    def sample(shapes: Mapping[str, Sequence[int]], index: int = 0) -> Sample:
        chance = np.random.default_rng(index)
        return {spec.name: random(spec.dtype, shapes.get(spec.name, ()), chance) for spec in specs}

    if all(isinstance(dim, int) for spec in specs for dim in spec.shape or ()):
        return partial(sample, next(fitting_shapes(specs)))
    session = open_session(model, "the original model")

    def run(shapes: Mapping[str, Sequence[int]]) -> None:
        try:
            session.run(None, dict(sample(shapes)))
        except Exception as error:  # onnxruntime's own, of no common base
            raise InputError(f"the model cannot run: {one_line(error)}") from error

    found, _ = first_that_runs(
        fitting_shapes(specs), run, partial(sizes_and_disagreement, model, specs), ""
    )
    return partial(sample, found)


def write_table(accuracy: Mapping[str, Mapping[str, float]], folder: Path) -> Path:
    """Write the measures to `output_summary.csv` in the folder, which is made; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "output_summary.csv"
    columns = list(dict.fromkeys(name for score in accuracy.values() for name in score))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["output", *columns])
        for output, measures in accuracy.items():
            writer.writerow([output, *(measures.get(name, "") for name in columns)])
    return path
