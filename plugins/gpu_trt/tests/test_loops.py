"""MindIR with while loops, against what MindSpore gave: shapes of what a loop carries are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import engine

NETS = Path(__file__).parents[3] / "tests" / "data" / "mindir" / "nets"
pytestmark = pytest.mark.skipif(not NETS.is_dir(), reason="the files lie in a checkout alone")


@pytest.mark.parametrize("name", ["while1", "twowhile", "whilebreak", "whilescalar"])
def test_a_loop_gives_what_mindspore_gave(name: str) -> None:
    recorded = np.load(NETS / f"{name}.npz")
    inputs = [recorded[f"in_{place}"] for place in range(len(recorded.files))
              if f"in_{place}" in recorded.files]  # fmt: skip
    with engine.load(NETS / f"{name}.mindir", target="gpu") as model:
        for place, result in enumerate(model.predict(inputs)):
            wanted = recorded[f"out_{place}"]
            assert tuple(result.shape) == wanted.shape
            np.testing.assert_allclose(result.get_data_to_numpy(), wanted, rtol=1e-5, atol=1e-6)
