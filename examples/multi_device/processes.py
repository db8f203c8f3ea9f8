"""One model on many devices, by hand: a process and a pipe for each, as MindSpore Lite's tutorial.

    python make_model.py
    python processes.py [--devices 0,1] [--target ascend] [--batch 4] [--runs 5] [MODEL]

The parent sends PREDICT with a part of the batch and gets REPLY with its outputs, or ERROR with
what went wrong. ENGINE_TARGET=cpu runs it where there is no NPU. A script for MindSpore Lite
differs from this one in its import alone: `import mindspore_lite as mslite`. With the engine's own
runner it is a few lines, for any batch, and survives a process that dies: multi_device.py.
"""

import argparse
import time
from contextlib import suppress
from enum import IntEnum
from multiprocessing import Pipe, Process
from pathlib import Path

import numpy as np

import engine as mslite

MODEL = Path(__file__).parent / "denoiser.onnx"


class Kind(IntEnum):
    """The first part of a message; the second is what it carries."""

    ERROR = 0
    PREDICT = 1
    REPLY = 2
    BUILD_FINISH = 3
    EXIT = 4


class MSLitePredict:
    """A model on one device, in the process that owns it."""

    def __init__(self, path, target, device_id):
        context = mslite.Context()
        context.target = [target]
        if target != "cpu":
            getattr(context, target).device_id = device_id
        self.model = mslite.Model()
        self.model.build_from_file(path, mslite.ModelType.MINDIR, context)

    def run(self, arrays):
        """Return the outputs for one part of a batch, as arrays."""
        inputs = self.model.get_inputs()
        self.model.resize(inputs, [list(array.shape) for array in arrays])
        for tensor, array in zip(inputs, arrays):
            tensor.set_data_from_numpy(array)
        return [output.get_data_to_numpy() for output in self.model.predict(inputs)]


def work(pipe, path, target, device_id):
    """Build the model and answer until EXIT: what a process of this script does."""
    try:
        predict = MSLitePredict(path, target, device_id)
        pipe.send((Kind.BUILD_FINISH, None))
        while True:
            kind, arrays = pipe.recv()
            if kind == Kind.EXIT:
                break
            pipe.send((Kind.REPLY, predict.run(arrays)))
    except EOFError:
        pass  # the parent has gone
    except Exception as error:
        pipe.send((Kind.ERROR, str(error)))


class ParallelPredictUtils:
    """A process for each device, and a pipe to it."""

    def __init__(self, path, target, device_ids):
        self.workers = []
        for device_id in device_ids:
            own, other = Pipe()
            process = Process(target=work, args=(other, path, target, device_id), daemon=True)
            self.workers.append((process, own, other))

    def build_model(self):
        """Start the processes and wait until each has built the model."""
        for process, _, other in self.workers:
            process.start()
            other.close()  # the child has it: when that ends, so does the pipe
        for number, (_, pipe, _) in enumerate(self.workers):
            self.receive(pipe, Kind.BUILD_FINISH)
            print(f"Success to build model {number}")

    def run_predict(self, arrays):
        """Return the outputs for a batch that the number of devices divides."""
        parts = zip(*(np.split(array, len(self.workers)) for array in arrays))
        for (_, pipe, _), part in zip(self.workers, parts):
            pipe.send((Kind.PREDICT, part))
        results = [self.receive(pipe, Kind.REPLY) for _, pipe, _ in self.workers]
        return [np.concatenate(outputs) for outputs in zip(*results)]

    def finalize(self):
        """End the processes."""
        for process, pipe, _ in self.workers:
            with suppress(OSError):  # it has ended by itself, and said why
                pipe.send((Kind.EXIT, None))
            process.join()

    @staticmethod
    def receive(pipe, wanted):
        """Return what a message carries."""
        try:
            kind, value = pipe.recv()
        except EOFError:
            raise RuntimeError("a process has died") from None
        if kind != wanted:
            raise RuntimeError(f"a process failed: {value}")
        return value


def main():
    """Run the model that the command line names."""
    parser = argparse.ArgumentParser(description="Run a model in a process for each device.")
    parser.add_argument("model", nargs="?", default=str(MODEL))
    parser.add_argument("--devices", default="0,1", help="device ids")
    parser.add_argument("--target", default="ascend", help="cpu, gpu or ascend")
    parser.add_argument("--batch", type=int, default=4, help="a multiple of the devices")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()

    devices = [int(number) for number in arguments.devices.split(",")]
    chance = np.random.default_rng(1)
    latents = chance.standard_normal((arguments.batch, 4, 64, 64), np.float32)
    text = chance.standard_normal((arguments.batch, 77, 1024), np.float32)

    utils = ParallelPredictUtils(arguments.model, arguments.target, devices)
    utils.build_model()
    try:
        begin = time.time()
        for _ in range(arguments.runs):
            [noise] = utils.run_predict([latents, text])
            latents = latents - 0.1 * noise
        print(f"Total predict time = {time.time() - begin:.3f} s")
        print("mean of each sample:", *latents.mean(axis=(1, 2, 3)).round(6))
    finally:
        utils.finalize()


if __name__ == "__main__":
    main()
