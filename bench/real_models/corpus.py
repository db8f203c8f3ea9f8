"""The corpus in a folder: models, where each comes from, and inputs that fit.

A model NAME is NAME.onnx and NAME.json: `source` (a package and its version, or the export that
made it), `license` (as far as the package says) and `inputs` (by name a shape and values).

    python bench/real_models/corpus.py DIR          list the models: nodes, size, inputs
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx


@dataclass(frozen=True)
class Given:
    """Values of one input. shape: all sizes. below: integers are in [0, below).

    value: all elements, or a list of them; None for random ones.
    """

    shape: tuple[int, ...]
    below: int = 2
    value: float | list[float] | None = None


@dataclass(frozen=True)
class Entry:
    """One model of the corpus."""

    name: str
    path: Path
    source: str
    license: str
    inputs: Mapping[str, Given]

    def feeds(self, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
        """Return arrays for all inputs, the same in each process."""
        random = np.random.default_rng(seed)
        model = onnx.load(self.path, load_external_data=False)
        constants = {tensor.name for tensor in model.graph.initializer}
        feeds = {}
        for value in model.graph.input:
            if value.name in constants:
                continue
            tensor = value.type.tensor_type
            sizes = tuple(dim.dim_value for dim in tensor.shape.dim)
            given = self.inputs.get(value.name) or Given(sizes)
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            feeds[value.name] = _array(given, np.dtype(dtype), random)
        return feeds


def _array(given: Given, dtype: np.dtype[Any], random: np.random.Generator) -> npt.NDArray[Any]:
    if given.value is not None:
        return np.broadcast_to(np.array(given.value, dtype), given.shape).copy()
    if dtype.kind == "f":
        return random.standard_normal(given.shape).astype(dtype)
    if dtype.kind == "b":
        return np.ones(given.shape, dtype)
    return random.integers(0, given.below, given.shape).astype(dtype)


def add(folder: Path, name: str, source: str, license: str, inputs: Mapping[str, Given]) -> None:
    """Describe NAME.onnx, which is in `folder`."""
    about = {
        "source": source,
        "license": license,
        "inputs": {key: asdict(given) for key, given in inputs.items()},
    }
    (folder / f"{name}.json").write_text(json.dumps(about, indent=1), encoding="utf-8")


def entries(folder: Path) -> Iterator[Entry]:
    """Return the models of a folder, by name."""
    for path in sorted(folder.glob("*.json")):
        model = path.with_suffix(".onnx")
        if not model.exists():
            continue
        about = json.loads(path.read_text(encoding="utf-8"))
        inputs = {
            key: Given(tuple(given["shape"]), given["below"], given["value"])
            for key, given in about["inputs"].items()
        }
        yield Entry(path.stem, model, about["source"], about["license"], inputs)


def main(folder: Path) -> None:
    """Print the corpus as a table."""
    print("| model | source | license | nodes | MB | inputs |")
    print("|---|---|---|---|---|---|")
    for entry in entries(folder):
        model = onnx.load(entry.path)
        size = entry.path.stat().st_size / 1e6
        shapes = ", ".join(
            f"{name} {array.dtype}{list(array.shape)}" for name, array in entry.feeds().items()
        )
        print(
            f"| {entry.name} | {entry.source} | {entry.license} | {len(model.graph.node)} "
            f"| {size:.1f} | {shapes} |"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
