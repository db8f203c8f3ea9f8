"""One master and two slaves that run one model on one copy of its weights.

    ENGINE_TARGET=cpu python weight_sharing.py [MODEL]

MODEL: a model file; the digits example's by default. The protocol is MindSpore Lite's, and so is
the way in which its tutorial passes on what the processes have to know: pids in an array, the
handle in a 64-bit integer, and everybody waits for the others in a loop.
A script for MindSpore Lite differs from this one in its import alone:
`import mindspore_lite as mslite`.
"""

import ctypes
import sys
from multiprocessing import Array, Process, Value
from multiprocessing.connection import wait
from pathlib import Path

import numpy as np

import engine as mslite

PROCESSES = 3
DIGITS = Path(__file__).parents[1] / "digits" / "digits.onnx"


def context_of(device_id):
    """Return a context for one NPU; ENGINE_TARGET=cpu runs it on the CPU all the same."""
    context = mslite.Context()
    context.target = ["ascend"]
    context.ascend.device_id = device_id
    return context


def work(index, path, pids, handle, ready):
    """Build the model as the master (index 0) or as a slave, and run it when all have built."""
    model = mslite.Model()
    if index == 0:
        while sum(pid != 0 for pid in pids) < PROCESSES - 1:
            pass
        # The array has a 0 in the master's own place; that is no process.
        config = {"ascend_context": {"shareable_weight_pid_list": str(list(pids))[1:-1]}}
        model.build_from_file(path, mslite.ModelType.MINDIR, context_of(2), config_dict=config)
        handle.value = int(model.get_model_info("shareable_weight_mem_handle"))
    else:
        pids[index] = int(model.get_model_info("current_pid"))  # not os.getpid()
        while handle.value == 0:
            pass
        config = {"ascend_context": {"shareable_weight_mem_handle": str(handle.value)}}
        model.build_from_file(path, mslite.ModelType.MINDIR, context_of(2), config_dict=config)
    ready[index] = 1
    while sum(ready) < PROCESSES:
        pass

    inputs = model.get_inputs()
    model.resize(inputs, [[abs(dim) for dim in tensor.shape] for tensor in inputs])
    for tensor in inputs:
        tensor.set_data_from_numpy(np.ones(tensor.shape, tensor.dtype.to_numpy()))
    for output in model.predict(inputs):
        values = output.get_data_to_numpy().flatten()[:5]
        # The end of the line with the text: others print too.
        text = f"process {index}, {output.name}: {' '.join(map(str, values))}\n"
        print(text, end="", flush=True)


def main():
    """Start the processes; returns how many of them failed."""
    path = sys.argv[1] if len(sys.argv) > 1 else str(DIGITS)
    pids, ready = Array("i", PROCESSES), Array("i", PROCESSES)
    handle = Value(ctypes.c_int64, 0)
    processes = [
        Process(target=work, args=(index, path, pids, handle, ready)) for index in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    running = {process.sentinel for process in processes}
    while running:
        ended = wait(running)
        running.difference_update(ended)
        for process in processes:
            if process.sentinel in ended:
                process.join()
        if any(process.exitcode for process in processes):  # the others would wait for it for ever
            for process in processes:
                process.terminate()
    return sum(process.exitcode != 0 for process in processes)


if __name__ == "__main__":
    sys.exit(main())
