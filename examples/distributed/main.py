"""One rank of a model that was sliced for several, as MindSpore Lite's two tutorials start it.

    mpirun -n 2 python main.py --model_path=Matmul.onnx      # or: engine launch -n 2 main.py ...

    python main.py --model_path=Matmul0.onnx --device_id=0 --rank_id=0 --config_file=config.ini &
    python main.py --model_path=Matmul1.onnx --device_id=1 --rank_id=1 --config_file=config.ini

In the first form the launcher says which rank a process is; in the second the command line does,
and the ranks find each other by the rank table that the configuration names. The targets are those
of the tutorials: gpu, and ascend where a configuration is given; ENGINE_TARGET=cpu runs both on the
CPU. make_model.py writes the files. A script for MindSpore Lite differs from this one in its import
alone: `import mindspore_lite as mslite`.
"""

import argparse
import os

import numpy as np

import engine as mslite


def context_of(arguments):
    """Return a context for this rank's device."""
    context = mslite.Context()
    if arguments.config_file:
        context.target = ["ascend"]
        context.ascend.provider = "ge"
        context.ascend.device_id = arguments.device_id
        context.ascend.rank_id = arguments.rank_id
    else:
        context.target = ["gpu"]
        context.gpu.device_id = context.gpu.rank_id
    return context


def main():
    """Build this rank's model, run it on ones, and print what it gives."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_path", required=True)
    parser.add_argument("--device_id", type=int, default=0)
    parser.add_argument("--rank_id", type=int, default=0)
    parser.add_argument("--config_file", default="")
    arguments = parser.parse_args()

    context = context_of(arguments)
    path = arguments.model_path
    if not arguments.config_file:  # Matmul.onnx: the file of rank 1 is Matmul1.onnx
        stem, suffix = os.path.splitext(path)
        path = f"{stem}{context.gpu.rank_id}{suffix}"
    model = mslite.Model()
    model.build_from_file(path, mslite.ModelType.MINDIR, context, arguments.config_file)

    inputs = model.get_inputs()
    for tensor in inputs:
        tensor.set_data_from_numpy(np.ones(tensor.shape, np.float32))
    for tensor in model.predict(inputs):
        data = tensor.get_data_to_numpy().flatten()
        print(
            f"tensor name is: {tensor.name}, tensor size is: {tensor.data_size}, "
            f"tensor elements num is: {tensor.element_num}"
        )
        print("output data is:", *data[:10])


if __name__ == "__main__":
    main()
