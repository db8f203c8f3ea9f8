"""Files that MindSpore wrote, run on the cpu backend, against MindSpore's own results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model, ModelType

OWN = Path(__file__).parents[2] / "data" / "mindir"
SHARED = Path(__file__).parents[4] / "shared" / "data" / "mindir"


def _entries(folder: Path) -> list[Any]:
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return [pytest.param(None, None, marks=pytest.mark.skip(f"no {manifest}"))]
    files = json.loads(manifest.read_text())["files"]
    return [
        pytest.param(folder, each, id=each["name"])
        for each in files
        if each.get("kind") != "sliced"
    ]


def _calls(arrays: Any) -> list[tuple[list[Any], list[Any]]]:
    def taken(stem: str) -> list[Any]:
        names = [f"{stem}_{place}" for place in range(50)]
        return [arrays[name] for name in names if name in arrays]

    prefixes = ["", *(f"case{number}_" for number in range(1, 20))]
    calls = [(taken(f"{prefix}in"), taken(f"{prefix}out")) for prefix in prefixes]
    return [(inputs, outputs) for inputs, outputs in calls if outputs]


@pytest.mark.parametrize(("folder", "entry"), [*_entries(OWN), *_entries(SHARED)])
def test_a_file_of_mindspore_gives_mindspores_results(folder, entry):
    path = folder / entry["file"]
    model = Model()
    model.build_from_file(
        str(path),
        ModelType.MINDIR,
        dec_key=bytes.fromhex(entry["dec_key"]) if "dec_key" in entry else None,
        dec_mode=entry.get("dec_mode", "AES-GCM"),
    )
    with model, np.load(path.with_suffix(".npz")) as arrays:
        for declared, spec in zip(entry.get("inputs", ()), model.inputs, strict=False):
            assert spec.name == declared["name"].partition(":")[2]
            assert str(spec.dtype) == declared["dtype"]
        calls = _calls(arrays)
        assert calls
        for inputs, expected in calls:
            results = model.predict(inputs)
            assert len(results) == len(expected)
            for tensor, wanted in zip(results, expected, strict=True):
                result = tensor.get_data_to_numpy()
                assert result.dtype == wanted.dtype
                assert result.shape == wanted.shape
                np.testing.assert_allclose(result, wanted, **entry["tolerance"])
