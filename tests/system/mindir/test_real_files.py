"""Files that MindSpore wrote, run on the cpu backend, against MindSpore's own results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Context
from engine.formats import open_source
from engine.plan import build_plan
from engine.plan.state import with_state

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
    prefixes = ["", *(f"case{number}_" for number in range(1, 20))]
    return [
        (
            [
                arrays[f"{prefix}in_{place}"]
                for place in range(50)
                if f"{prefix}in_{place}" in arrays
            ],
            [
                arrays[f"{prefix}out_{place}"]
                for place in range(50)
                if f"{prefix}out_{place}" in arrays
            ],
        )
        for prefix in prefixes
        if f"{prefix}out_0" in arrays
    ]


@pytest.mark.parametrize(("folder", "entry"), [*_entries(OWN), *_entries(SHARED)])
def test_a_file_of_mindspore_gives_mindspores_results(folder: Path, entry: dict[str, Any]) -> None:
    path = folder / entry["file"]
    key = bytes.fromhex(entry["dec_key"]) if "dec_key" in entry else None
    plan = with_state(
        build_plan(
            lambda suffixes: open_source(
                path, suffixes, dec_key=key, dec_mode=entry.get("dec_mode", "AES-GCM")
            ),
            Context(),
            {},
        )
    )
    for declared, spec in zip(entry.get("inputs", ()), plan.executable.inputs, strict=False):
        assert spec.name == declared["name"].partition(":")[2]
        assert str(spec.dtype) == declared["dtype"]
    context = plan.pool.take()
    with np.load(path.with_suffix(".npz")) as arrays:
        calls = _calls(arrays)
        assert calls
        for inputs, expected in calls:
            results = plan.predict(context, inputs, None, None)
            assert len(results) == len(expected)
            for result, wanted in zip(results, expected, strict=True):
                assert result.dtype == wanted.dtype
                assert result.shape == wanted.shape
                np.testing.assert_allclose(result, wanted, **entry["tolerance"])
    plan.pool.give_back(context)
    plan.pool.close()
