"""Networks on target ["openvino", "cpu"] have cpu's results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino
import pytest
from onnx import parser
from real_models import MODELS, compare

import engine

MOST = 1e-5  # of the largest number of an output


@pytest.mark.parametrize("name", MODELS)
def test_a_network_has_the_results_of_cpu(name: str, tmp_path: Path) -> None:
    found = compare(MODELS[name](tmp_path))
    assert found.difference <= MOST
    assert found.nodes["openvino"] >= 0.9 * found.nodes.total()


def test_products_are_rounded_to_bfloat16_where_that_is_allowed() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1, 256] x, float[256, 1] w) '
        "=> (float[1, 1] y) { y = MatMul(x, w) }"
    ).SerializeToString()
    x, w = np.ones((1, 256), np.float32), np.full((256, 1), 1 + 2**-10, np.float32)
    found = {}
    for arithmetic in ("exact", "bfloat16"):
        config = {"openvino_context": {"arithmetic": arithmetic}}
        built = engine.load(model, target="openvino", config=config)
        found[arithmetic] = float(built.predict([x, w])[0].get_data_to_numpy()[0, 0])
    has_bfloat16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    # bfloat16 has 8 bits: 1 + 2**-10 is 1 in it.
    assert found == {"exact": 256.25, "bfloat16": 256.0 if has_bfloat16 else 256.25}
