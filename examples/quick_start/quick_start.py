"""The first script of MindSpore Lite's tutorials: build a model, run it, print its outputs.

    python quick_start.py [MODEL [INPUT]]

MODEL: a model file; the digits example's by default. INPUT: a raw file with the bytes of the
model's first input, as numpy's `array.tofile` writes it; ones by default.
A script for MindSpore Lite differs from this one in its import alone:
`import mindspore_lite as mslite`.
"""

import argparse
from pathlib import Path

import numpy as np

import engine as mslite

DIGITS = Path(__file__).parents[1] / "digits" / "digits.onnx"


def main() -> None:
    """Run the model that the command line names."""
    parser = argparse.ArgumentParser(description="Run a model on the CPU and print its outputs.")
    parser.add_argument("model", nargs="?", default=str(DIGITS))
    parser.add_argument("input", nargs="?", help="raw bytes of the first input")
    arguments = parser.parse_args()

    # Where to run.
    context = mslite.Context()
    context.target = ["cpu"]
    context.cpu.thread_num = 1
    context.cpu.thread_affinity_mode = 2

    # Build the model: once, before the first predict.
    model = mslite.Model()
    model.build_from_file(arguments.model, mslite.ModelType.MINDIR, context)

    # Fill the inputs. Axes that the model leaves open (-1) are fixed to 1 here.
    inputs = model.get_inputs()
    if any(dim < 0 for each in inputs for dim in each.shape):
        model.resize(inputs, [[abs(dim) for dim in each.shape] for each in inputs])
    for place, tensor in enumerate(inputs):
        dtype = tensor.dtype.to_numpy()
        if place == 0 and arguments.input:
            data = np.fromfile(arguments.input, dtype=dtype)
        else:
            data = np.ones(tensor.shape, dtype)
        tensor.set_data_from_numpy(data)

    # Run, and print what came out.
    for output in model.predict(inputs):
        print(
            f"tensor name is: {output.name}, tensor size is: {output.data_size} bytes, "
            f"tensor elements num is: {output.element_num}"
        )
        data = output.get_data_to_numpy().flatten()
        print("output data is:", *data[:50])


if __name__ == "__main__":
    main()
