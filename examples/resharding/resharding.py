"""Weights that four ranks trained, for two ranks that predict, and for one.

The digits network stands for a large one. What a training job of MindSpore leaves - a strategy file
and a checkpoint of each rank - is made here from random weights; all that follows is as with such
files: `python resharding.py [FOLDER]`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import engine
from engine import sharding

DIGITS = Path(__file__).parents[1] / "digits"
MODEL = DIGITS / "digits.onnx"
SHAPES = {"weight0": (64, 256), "bias0": (256,), "weight1": (256, 10), "bias1": (10,)}

# 2 x 2 devices: replicas, and the hidden layer's neurons. Each replica keeps half of what it
# trains (the optimizer is sharded); the last bias is whole everywhere.
TRAINING = {
    "weight0": sharding.Layout((2, 2), (-1, 0), opt_weight_shard_step=2, opt_weight_shard_size=2),
    "bias0": sharding.Layout((2, 2), (0,), opt_weight_shard_step=2, opt_weight_shard_size=2),
    "weight1": sharding.Layout((2, 2), (0, -1), opt_weight_shard_step=2, opt_weight_shard_size=-1),
    "bias1": sharding.Layout((2, 2), (-1,)),
}
# To predict, two ranks: the hidden layer by columns, the next by rows.
PREDICTING = {"hidden": ((1, 1), (1, 2)), "classes": ((1, 2), (2, 1))}


def train(folder: Path) -> dict[str, np.ndarray]:
    """Leave in `folder` what a training job leaves; return the whole weights."""
    random = np.random.default_rng(0)
    weights = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()
    }
    sharding.Strategy({"hidden": sharding.NodeStrategy(((2, 1), (1, 2)))}, TRAINING).save(
        folder / "train.ckpt"
    )
    for rank in range(4):
        slices = {
            name: array[tuple(slice(*ends) for ends in TRAINING[name].box(rank, array.shape))]
            for name, array in weights.items()
        }
        sharding.save_checkpoint(slices, folder / "trained" / f"rank_{rank}" / "digits-1.ckpt")
    return weights


def main(folder: Path) -> None:
    """Take the weights from four ranks to two, and into one model; show that they are the same."""
    weights = train(folder)
    images = np.load(DIGITS / "test_images.npz")["image"]

    # The split of the model to predict, as a strategy file.
    layouts = sharding.infer_predict_layout(MODEL, [images], PREDICTING)
    sharding.Strategy(layouts=layouts).save(folder / "predict.ckpt")

    # The checkpoints of two ranks from those of four.
    strategies = folder / "train.ckpt", folder / "predict.ckpt"
    print("rank 0 needs", sharding.rank_list_for_transform(0, *strategies))
    sharding.transform_checkpoints(folder / "trained", folder / "sliced", "digits", *strategies)
    for rank in range(2):
        file = folder / "sliced" / f"rank_{rank}" / f"digits{rank}.ckpt"
        shapes = {name: list(value.shape) for name, value in sharding.load_checkpoint(file).items()}
        print(f"rank {rank}: {shapes}")

    # The whole weights in one model: from the four ranks' files, and from the two's.
    for job, count, strategy in (("trained", 4, strategies[0]), ("sliced", 2, strategies[1])):
        files = [next((folder / job / f"rank_{rank}").iterdir()) for rank in range(count)]
        sharding.load_distributed_checkpoint(
            MODEL, files, None, strategy, output_file=folder / f"from_{job}.onnx"
        )
        with engine.load(folder / f"from_{job}.onnx") as model:
            got = model(image=images)
        hidden = np.maximum(images.reshape(-1, 64) / 16 @ weights["weight0"] + weights["bias0"], 0)
        scores = hidden @ weights["weight1"] + weights["bias1"]
        as_it_should = np.array_equal(got["label"], scores.argmax(1))
        print(f"{job}: labels {got['label'][:5]}, as the full weights give: {as_it_should}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
