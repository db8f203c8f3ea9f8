#!/usr/bin/env python3
"""Train a small network on scikit-learn's handwritten digits and export it as ONNX.

Writes `digits.onnx` and `test_images.npz` (the held-back images, raw pixels 0..16) and prints
the accuracy on the held-back images, computed with the exported file.

The 1797 images are split once: 1437 to train on, 360 held back. The settings below were chosen
by five-fold cross-validation inside the 1437; the held-back images were not looked at.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import onnx
import sklearn
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits  # comes with scikit-learn

SEED = 0  # of the split, the first weights and nothing else: there is no other chance involved
HIDDEN = 256
ITERATIONS = 300
DECAY = 5.0  # L2 penalty on the weights
HIGHEST = 16.0  # value of a fully inked pixel
SHIFTS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))  # every image also moved by one pixel


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return train images, train labels, held-back images, held-back labels.

    Images are float32[n, 1, 8, 8] with values 0..16, labels int64[n].
    """
    pixels, labels = load_digits(return_X_y=True)
    images = pixels.astype(np.float32).reshape(-1, 1, 8, 8)
    train, held, train_labels, held_labels = train_test_split(
        images, labels.astype(np.int64), test_size=0.2, stratify=labels, random_state=SEED
    )
    return train, train_labels, held, held_labels


def shifted(images: np.ndarray, down: int, right: int) -> np.ndarray:
    """Return the images moved by at most one pixel each way, blank pixels coming in."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return padded[:, :, 1 - down : 9 - down, 1 - right : 9 - right]


def train(images: np.ndarray, labels: np.ndarray) -> MLPClassifier:
    """Fit one hidden layer of rectified units."""
    more = np.concatenate([shifted(images, *shift) for shift in SHIFTS])
    network = MLPClassifier(
        (HIDDEN,), solver="lbfgs", alpha=DECAY, max_iter=ITERATIONS, random_state=SEED
    )
    # One thread: for matrices this small it is faster, and the sums do not depend on the machine.
    with threadpool_limits(1), warnings.catch_warnings():
        # The number of iterations is a setting here, not a failure to converge.
        warnings.simplefilter("ignore", ConvergenceWarning)
        # float64: the optimiser's line search is steadier; the export rounds to float32.
        network.fit(more.reshape(len(more), 64) / np.float64(HIGHEST), np.tile(labels, len(SHIFTS)))
    return network


def export(network: MLPClassifier) -> onnx.ModelProto:
    """Return the network as an ONNX model from raw pixels to probabilities and labels."""
    constants = {
        "highest": np.array(HIGHEST, np.float32),
        **{f"weight{i}": w.astype(np.float32) for i, w in enumerate(network.coefs_)},
        **{f"bias{i}": b.astype(np.float32) for i, b in enumerate(network.intercepts_)},
    }
    nodes = [
        helper.make_node("Div", ["image", "highest"], ["scaled"], "scale"),
        helper.make_node("Flatten", ["scaled"], ["flat"], "flatten", axis=1),
        helper.make_node("Gemm", ["flat", "weight0", "bias0"], ["sums"], "hidden"),
        helper.make_node("Relu", ["sums"], ["features"], "rectify"),
        helper.make_node("Gemm", ["features", "weight1", "bias1"], ["scores"], "classes"),
        helper.make_node("Softmax", ["scores"], ["probabilities"], "softmax", axis=1),
        helper.make_node("ArgMax", ["probabilities"], ["label"], "best", axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10]),
            helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"]),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(
        graph,
        producer_name="examples/digits/train.py",
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    helper.set_model_props(model, {"trained_with": f"scikit-learn {sklearn.__version__}"})
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Train, export and report."""
    parser = argparse.ArgumentParser(
        description="Train a small network on scikit-learn's digits and export it as ONNX.",
        epilog="example: python examples/digits/train.py --output /tmp/digits",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).parent,
        metavar="FOLDER",
        help="where digits.onnx and test_images.npz are written (default: beside this script)",
    )
    folder: Path = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)

    images, labels, held, held_labels = split()
    print(f"training on {len(labels)} images, {len(held_labels)} held back")
    model = export(train(images, labels))
    onnx.save(model, folder / "digits.onnx")
    np.savez_compressed(folder / "test_images.npz", image=held, label=held_labels)

    # onnx's own evaluator: what is reported is the file's accuracy, not the trainer's.
    [found] = ReferenceEvaluator(model).run(["label"], {"image": held})
    right = int((found == held_labels).sum())
    print(f"accuracy on the held-back images: {right / len(held):.4f} ({right} of {len(held)})")
    print(f"wrote {folder / 'digits.onnx'} ({(folder / 'digits.onnx').stat().st_size} bytes)")


if __name__ == "__main__":
    main()
