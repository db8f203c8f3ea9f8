"""Twelve networks on target ["openvino", "cpu"], compared with cpu alone.

    python tests/real_models.py        # in the example's folder of a checkout; prints a table
    python tests/real_models.py jax    # of another backend

Six are the networks that the onnx package brings, with weights drawn at random in place of the
constant ones, at opset 17; three are of bench/models.py; the others were trained.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper, version_converter

import engine

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "bench"))

import models as bench  # noqa: E402

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
Maker = Callable[[Path], Path]


def drawn(name: str) -> Maker:
    """Return the maker of one of onnx's networks, each weight drawn instead of constant."""

    def make(folder: Path) -> Path:
        model = onnx.load(LIGHT / f"light_{name}.onnx")
        random, graph = np.random.default_rng(0), model.graph
        shapes = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        variances = {n.input[4] for n in graph.node if n.op_type == "BatchNormalization"}
        for node in [node for node in graph.node if node.op_type == "ConstantOfShape"]:
            shape, weight = shapes[node.input[0]], node.output[0]
            values = random.standard_normal(shape) * (2 / max(1, np.prod(shape[1:]))) ** 0.5
            if len(shape) == 1:
                values = random.uniform(0.5, 1.5, shape) if weight in variances else values / 20
            graph.node.remove(node)
            graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), weight))
        model.ir_version = 8  # before 4, weights have to be inputs too
        path = folder / f"{name}.onnx"
        onnx.save(version_converter.convert_version(model, 17), path)
        return path

    return make


def bert_with_int8_weights(folder: Path) -> Path:
    """The encoder with matrices stored as int8, scaled by column: Mul (Cast (weight), scale)."""
    model = onnx.load(bench.bert_like(folder))
    graph = model.graph
    for tensor in list(graph.initializer):
        weight = numpy_helper.to_array(tensor)
        if weight.ndim != 2 or weight.dtype != np.float32:
            continue
        scale = np.abs(weight).max(axis=0) / 127
        stored = np.round(weight / scale).astype(np.int8)
        graph.initializer.remove(tensor)
        graph.initializer.extend([
            numpy_helper.from_array(stored, f"{tensor.name}_int8"),
            numpy_helper.from_array(scale, f"{tensor.name}_scale"),
        ])  # fmt: skip
        number = f"{tensor.name}_number"
        cast = onnx.helper.make_node("Cast", [f"{tensor.name}_int8"], [number], to=1)
        scaled = onnx.helper.make_node("Mul", [number, f"{tensor.name}_scale"], [tensor.name])
        graph.node.insert(0, scaled)
        graph.node.insert(0, cast)
    path = folder / "bert_int8.onnx"
    onnx.save(model, path)
    return path


MODELS: dict[str, Maker] = {
    "digits (trained)": lambda _: ROOT / "examples/digits/digits.onnx",
    "lenet_bn.mindir (trained)": lambda _: ROOT / "tests/data/mindir/lenet_bn.mindir",
    "mlp.mindir (trained)": lambda _: ROOT / "tests/data/mindir/mlp.mindir",
    "MobileNetV2": bench.mobilenet_v2,
    "BERT, 6 layers": bench.bert_like,
    "BERT, weights stored as int8": bert_with_int8_weights,
    "ResNet-50": drawn("resnet50"),
    "DenseNet-121": drawn("densenet121"),
    "Inception v1": drawn("inception_v1"),
    "Inception v2": drawn("inception_v2"),
    "ShuffleNet": drawn("shufflenet"),
    "SqueezeNet": drawn("squeezenet"),
}


class Comparison(NamedTuple):
    """difference: the largest, as a part of the largest number of cpu's output."""

    difference: float
    nodes: Counter[str]


def compare(path: Path, backend: str = "openvino") -> Comparison:
    """Run a model on both targets, on three inputs."""
    with (
        engine.load(str(path), target="cpu") as expected,
        engine.load(str(path), target=[backend, "cpu"]) as got,
    ):
        worst = 0.0
        for seed in range(3):
            inputs = list(_inputs(expected, seed))
            for wanted, value in zip(expected(*inputs).values(), got(*inputs).values()):
                if wanted.dtype != np.float32:
                    assert np.array_equal(value, wanted)
                    continue
                largest = float(np.abs(wanted).max())
                worst = max(worst, float(np.abs(value - wanted).max()) / largest)
        return Comparison(worst, Counter(each.backend for each in got.placement))


def _inputs(model: Any, seed: int) -> Iterator[Any]:
    random = np.random.default_rng(seed)
    for spec in model.inputs:
        shape = [dim if isinstance(dim, int) and dim > 0 else 2 for dim in spec.shape]
        yield random.standard_normal(shape).astype(np.float32)


def main() -> None:
    """Print the table."""
    backend = sys.argv[1] if len(sys.argv) > 1 else "openvino"
    print(f"| model | nodes on {backend} | on cpu | largest difference |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in MODELS.items():
            found = compare(make(Path(folder)), backend)
            places = f"{found.nodes[backend]} | {found.nodes['cpu']}"
            print(f"| {name} | {places} | {found.difference:.1e} |")


if __name__ == "__main__":
    main()
