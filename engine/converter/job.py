"""A conversion: its settings, and its report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.config.text import aligned, counted, duration, html_tables, plain, size
from engine.errors import ModelError
from engine.formats import ModelFile
from engine.tensor.enums import DataType, FmkType, Format
from engine.types import CancelToken, Progress, TensorSpec

if TYPE_CHECKING:
    from onnx import ModelProto

Read: TypeAlias = "tuple[ModelProto, list[str]]"
"""Result of a source: the model as ONNX, and notes for the report."""

Framework: TypeAlias = FmkType | str
"""A framework: upstream's name for it, or that of an installed source which upstream has not."""

_LARGEST_DIM = 2**63 - 1  # as ONNX stores them


def name_of(framework: Framework) -> str:
    """Return a framework's name."""
    return framework.name if isinstance(framework, FmkType) else framework


def _silent(phase: str, done: int, total: int | None) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One conversion. Everything in it has been checked for its type, not against the model.

    framework, model_file: what is read; file: the same, opened once by whoever needs it first;
    weight_file: a second file that belongs to it, or None.
    output_file: where the result goes, its ending included.
    input_shape: by input name; a dim is at least 1, or -1 for one that stays open.
    input_format, output_format: layout of 4-D inputs and outputs, NCHW or NHWC; None leaves the
        model's own.
    input_dtype, output_dtype: element type at the edge; None leaves the model's own.
    weight_fp16: store float32 weights as float16. infer: run the result once.
    encrypt_key: the result is encrypted with it (AES-GCM); decrypt_key, decrypt_mode: of a MindIR.
    optimize: what the result is meant for, as `Converter.optimize` has it; noted in it.
    config: sections of the converter's configuration.
    notes: what the report begins with.
    progress, cancel: as in `Model.build_from_file`; called and read in the converting thread.

    Raises ModelError for an input shape that cannot be.
    """

    framework: Framework
    model_file: Path
    output_file: Path
    file: ModelFile = None  # type: ignore[assignment]  # see __post_init__
    weight_file: Path | None = None
    input_shape: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    input_format: Format | None = None
    output_format: Format | None = None
    input_dtype: DataType | None = None
    output_dtype: DataType | None = None
    weight_fp16: bool = False
    infer: bool = False
    encrypt_key: bytes | None = field(default=None, repr=False)
    decrypt_key: bytes | None = field(default=None, repr=False)
    decrypt_mode: str = "AES-GCM"
    optimize: str = "general"
    config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    progress: Progress = field(default=_silent, repr=False)
    cancel: CancelToken = field(default_factory=CancelToken, repr=False)

    def __post_init__(self) -> None:
        if self.file is None:
            object.__setattr__(self, "file", ModelFile(self.model_file))
        for name, shape in self.input_shape.items():
            for index, dim in enumerate(shape):
                if not 1 <= dim <= _LARGEST_DIM and dim != -1:
                    raise ModelError(
                        f"input_shape of {name!r}: dim {index} is {dim}; expected "
                        f"1..{_LARGEST_DIM}, or -1 for a dim that stays open"
                    )

    @property
    def is_secret(self) -> bool:
        """True if a key is among the settings: then nothing goes to a disk in clear."""
        return self.encrypt_key is not None or self.decrypt_key is not None

    def error(self, text: str) -> ModelError:
        """Return the error for a model that cannot be converted, with its file's name in front."""
        return ModelError(f"{self.model_file}: {text}", str(self.model_file))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Show a phase of unknown length, and at its end that it is done. Raises Cancelled."""
        self.cancel.check()
        self.progress(name, 0, None)
        yield
        self.progress(name, 1, 1)

    def watched(self, progress: Progress | None, cancel: CancelToken | None) -> Job:
        """Return the same job, watched by these; None watches nothing."""
        return replace(self, progress=progress or _silent, cancel=cancel or CancelToken())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report:
    """Report of a conversion. Prints as text, in a notebook as tables.

    files: what was written, the model first. size_before, size_after: of the source's and the
    result's files, in bytes; weights of ONNX and MindIR count where they lie apart. notes: what a
    user should know, a line each. accuracy: how near the quantized model comes to the original, by
    output name; {} where nothing was quantized. seconds: how long it took. trial: the outputs of a
    trial run by name, numpy arrays; {} where none was asked for.
    """

    files: tuple[Path, ...]
    size_before: int
    size_after: int
    nodes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    notes: tuple[str, ...] = ()
    accuracy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    trial: Mapping[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, str]:
        """Return what was made, as text by name; what there is none of is left out."""
        found = {
            "result": ", ".join(map(str, self.files)),
            "size": f"{size(self.size_after)}, before {size(self.size_before)}",
            "graph": counted(self.nodes, "node"),
            "inputs": ", ".join(f"{spec.name}: {spec}" for spec in self.inputs),
            "outputs": ", ".join(f"{spec.name}: {spec}" for spec in self.outputs),
            "took": duration(self.seconds),
        }
        for name, measures in self.accuracy.items():
            values = (f"{title_of(key)} {value:.6g}" for key, value in measures.items())
            found[f"accuracy of {name}"] = ", ".join(values)
        for name, value in self.trial.items():
            found[f"trial's {name}"] = _shortly(value)
        return {name: text for name, text in found.items() if text}

    def __str__(self) -> str:
        return "\n".join(
            [*aligned(self.facts().items()), *(f"note: {plain(n)}" for n in self.notes)]
        )

    def __repr__(self) -> str:
        return str(self)  # what a prompt shows

    def _repr_html_(self) -> str:
        rows = [*self.facts().items(), *(("note", note) for note in self.notes)]
        return html_tables("conversion", [("", rows)])


def title_of(measure: str) -> str:
    """Return a measure of accuracy for people: an output has one agreement, or none."""
    return "agreement" if measure == "top1_agreement" else measure.replace("_", " ")


def _shortly(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    return f"{dtype}{list(shape)}" if shape is not None else type(value).__name__
