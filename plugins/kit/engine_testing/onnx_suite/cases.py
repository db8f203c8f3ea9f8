"""The tests of onnx's backend suite as data: a model, its inputs, what must come out.

They come from the installed onnx package, with nothing to download. The suite knows two kinds: the
tests of operators (2,024 in onnx 1.23: generated node tests and small files), and the nine "light"
models, real networks whose weights are constants.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

Values = list[Any]
"""Arrays; a list for a sequence, None for an absent optional."""

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
LIGHT = "real"

# Their operators draw numbers, or drop them, at random: no two implementations agree on which.
_RANDOM = re.compile(r"test_(bernoulli\w*|training_dropout(?!_zero_ratio)\w*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test. `model` is an ONNX file's bytes; each of `runs` has inputs and wanted outputs.

    kind: one of KINDS. rtol, atol: the suite's tolerances for it.
    """

    name: str
    kind: str
    model: bytes
    runs: tuple[tuple[Values, Values], ...]
    rtol: float
    atol: float

    @property
    def is_light(self) -> bool:
        """Return whether this is one of the light models."""
        return self.kind == LIGHT

    @property
    def is_random(self) -> bool:
        """Return whether its values are random, so that only types and shapes can be compared."""
        return _RANDOM.fullmatch(self.name) is not None


def load_cases(pattern: str = "") -> list[Case]:
    """The tests whose name has a match of the regular expression `pattern`, sorted by name.

    Takes some seconds: onnx computes the wanted outputs of its node tests anew. They are the same
    in every process.
    """
    wanted = re.compile(pattern)
    state = np.random.get_state()  # noqa: NPY002 - onnx seeds the global generator for each test
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            tests = [test for kind in KINDS for test in load_model_tests(kind=kind)]
    finally:
        np.random.set_state(state)  # noqa: NPY002
    chosen = [test for test in tests if wanted.search(test.name)]
    return [_case(test) for test in sorted(chosen, key=lambda test: test.name)]


def _case(test: Any) -> Case:
    if test.model is not None:
        model = test.model.SerializeToString()
        runs = [([*map(_plain, given)], [*map(_plain, out)]) for given, out in test.data_sets]
    elif test.model_dir is not None:
        folder = Path(test.model_dir)
        model = (folder / "model.onnx").read_bytes()
        runs = list(_stored(folder, onnx.load_model_from_string(model).graph))
    else:
        path = Path(onnx.__file__).parents[1] / test.url
        model = path.read_bytes()
        runs = [_light(path, onnx.load_model_from_string(model).graph)]
    if not runs or not all(wanted for _, wanted in runs):
        raise AssertionError(f"{test.name}: the suite has no outputs to compare with")
    return Case(
        name=test.name, kind=test.kind, model=model, runs=tuple(runs), rtol=test.rtol,
        atol=test.atol,
    )  # fmt: skip


def _plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _stored(folder: Path, graph: onnx.GraphProto) -> Iterator[tuple[Values, Values]]:
    """Inputs and outputs from the files beside a model."""
    for run in sorted(folder.glob("test_data_set*")):
        yield (
            [_read(path, graph.input) for path in _numbered(run, "input")],
            [_read(path, graph.output) for path in _numbered(run, "output")],
        )


def _numbered(folder: Path, what: str) -> list[Path]:
    return [folder / f"{what}_{i}.pb" for i in range(len(list(folder.glob(f"{what}_*.pb"))))]


def _read(path: Path, declared: Any) -> Any:
    """A value from a file; `declared`, the graph's inputs or outputs, says of what kind it is."""
    data = path.read_bytes()
    kind = declared[int(path.stem.rpartition("_")[2])].type.WhichOneof("value")
    if kind == "tensor_type":
        return numpy_helper.to_array(onnx.TensorProto.FromString(data))
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    raise AssertionError(f"{path}: the suite has no values of {kind}")


def _light(path: Path, graph: onnx.GraphProto) -> tuple[Values, Values]:
    """The input that the suite makes for a light model, and the output stored beside it."""
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [Runner.generate_dummy_data(x) for x in graph.input if x.name not in constants]
    stem = str(path.with_suffix(""))
    outputs = [_read(Path(f"{stem}_output_{i}.pb"), graph.output) for i in range(len(graph.output))]
    return inputs, outputs
