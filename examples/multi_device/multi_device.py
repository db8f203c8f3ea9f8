"""One model on many devices: every one gets its part of the batch.

    python make_model.py
    python multi_device.py [--devices 0,1] [--target cpu] [--batch 4] [--runs 5] [MODEL]

What processes.py does by hand, with the engine's runner: a worker process for each device, the
inputs cut along the batch, the outputs joined in order. Workers that die are replaced.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import engine

MODEL = Path(__file__).parent / "denoiser.onnx"


def main() -> None:
    """Run the model that the command line names."""
    parser = argparse.ArgumentParser(description="Run a model on many devices.")
    parser.add_argument("model", nargs="?", default=str(MODEL))
    parser.add_argument("--devices", default="0,1", help="device ids; on cpu any numbers")
    parser.add_argument("--target", default="cpu", help="cpu, gpu or ascend")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()

    context = engine.Context()
    context.target = [arguments.target]
    devices = [int(number) for number in arguments.devices.split(",")]
    chance = np.random.default_rng(1)
    latents = chance.standard_normal((arguments.batch, 4, 64, 64), np.float32)
    text = chance.standard_normal((arguments.batch, 77, 1024), np.float32)

    with engine.MultiDeviceRunner(arguments.model, devices, context) as runner:
        begin = time.time()
        for _ in range(arguments.runs):
            [noise] = runner.predict([latents, text])
            latents = latents - 0.1 * noise.get_data_to_numpy()
        print(f"Total predict time = {time.time() - begin:.3f} s")
        print("mean of each sample:", *latents.mean(axis=(1, 2, 3)).round(6))


if __name__ == "__main__":
    main()
