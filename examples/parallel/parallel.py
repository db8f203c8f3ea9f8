"""Many clients of one model: MindSpore Lite's tutorial of concurrent inference.

    python parallel.py [--workers 3] [--clients 5] [--tasks 2] [MODEL]

Each client is a thread that sends its tasks one after the other. A script for MindSpore Lite
differs from this one in its import alone: `import mindspore_lite as mslite`.
"""

import argparse
import time
from pathlib import Path
from threading import Thread

import numpy as np

import engine as mslite

DIGITS = Path(__file__).parents[1] / "digits" / "digits.onnx"


def client(runner: mslite.ModelParallelRunner, number: int, tasks: int) -> None:
    """Send tasks, each after the last has ended, and say how long each took."""
    for task in range(1, tasks + 1):
        inputs = runner.get_inputs()
        for tensor in inputs:
            shape = [abs(dim) for dim in tensor.shape]  # open axes are -1: one sample
            tensor.shape = shape
            tensor.set_data_from_numpy(np.ones(shape, tensor.dtype.to_numpy()))
        begin = time.time()
        outputs = runner.predict(inputs)
        print(
            f"client {number} | task {task} | {(time.time() - begin) * 1e3:.1f} ms | "
            + ", ".join(f"{output.name}: {output.element_num} elements" for output in outputs)
            + "\n",
            end="",  # one write a line: print's own newline may come after another thread's line
        )


def main() -> None:
    """Serve the model that the command line names."""
    parser = argparse.ArgumentParser(description="Run a model for several clients at once.")
    parser.add_argument("model", nargs="?", default=str(DIGITS))
    parser.add_argument("--workers", type=int, default=3, help="how many predicts run at once")
    parser.add_argument("--clients", type=int, default=5, help="threads that send tasks")
    parser.add_argument("--tasks", type=int, default=2, help="of each client")
    arguments = parser.parse_args()

    context = mslite.Context()
    context.target = ["cpu"]
    context.cpu.thread_num = 1
    context.cpu.inter_op_parallel_num = 1
    context.parallel.workers_num = arguments.workers

    runner = mslite.ModelParallelRunner()
    runner.build_from_file(model_path=arguments.model, context=context)

    begin = time.time()
    clients = [
        Thread(target=client, args=(runner, number, arguments.tasks))
        for number in range(arguments.clients)
    ]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    print(f"total: {(time.time() - begin) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
