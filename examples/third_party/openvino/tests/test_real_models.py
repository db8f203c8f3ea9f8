"""Networks on target ["openvino", "cpu"] have cpu's results."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_models import MODELS, compare

MOST = 1e-5  # of the largest number of an output


@pytest.mark.parametrize("name", MODELS)
def test_a_network_has_the_results_of_cpu(name: str, tmp_path: Path) -> None:
    found = compare(MODELS[name](tmp_path))
    assert found.difference <= MOST
    assert found.nodes["openvino"] >= 0.9 * found.nodes.total()
