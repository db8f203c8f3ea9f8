#!/usr/bin/env python3
"""Write a small model with the inputs and the output of Stable Diffusion's denoiser.

    python make_model.py [--batch 1] [FILE]

Inputs: latents float32[batch, 4, 64, 64] and text float32[batch, 77, 1024]; output: noise
float32[batch, 4, 64, 64]. Two convolutions, and the text's mean beside them; 30,000 weights from a
fixed seed. `--batch 0` leaves the batch open. Needs the onnx package.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MODEL = Path(__file__).parent / "denoiser.onnx"
FEATURES = 16


def make(path: Path, batch: int = 1) -> None:
    """Write the model for batches of this size, 0 for any."""
    chance = np.random.default_rng(0)
    weights = {
        "first": chance.standard_normal((FEATURES, 4, 3, 3)) / 6,
        "last": chance.standard_normal((4, FEATURES, 3, 3)) / 12,
        "reading": chance.standard_normal((1024, FEATURES)) / 32,
    }
    initializers = [
        *(
            numpy_helper.from_array(array.astype(np.float32), name)
            for name, array in weights.items()
        ),
        numpy_helper.from_array(np.array([2, 3]), "pixels"),
    ]
    nodes = [
        helper.make_node("ReduceMean", ["text"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "reading"], ["meaning"]),
        helper.make_node("Unsqueeze", ["meaning", "pixels"], ["everywhere"]),
        helper.make_node("Conv", ["latents", "first"], ["features"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["features", "everywhere"], ["guided"]),
        helper.make_node("Tanh", ["guided"], ["bounded"]),
        helper.make_node("Conv", ["bounded", "last"], ["noise"], pads=[1, 1, 1, 1]),
    ]
    size = batch or "batch"

    def value(name: str, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        nodes,
        "denoiser",
        [value("latents", size, 4, 64, 64), value("text", size, 77, 1024)],
        [value("noise", size, 4, 64, 64)],
        initializers,
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def main() -> None:
    """Write the model that the command line asks for."""
    parser = argparse.ArgumentParser(description="Write a small denoiser as an ONNX file.")
    parser.add_argument("file", nargs="?", type=Path, default=MODEL)
    parser.add_argument("--batch", type=int, default=1, help="samples in a run; 0: any number")
    arguments = parser.parse_args()
    make(arguments.file, arguments.batch)
    print(f"wrote {arguments.file}")


if __name__ == "__main__":
    main()
