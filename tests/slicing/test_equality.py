"""Slices in processes give the model's numbers, and bit for bit those of a run in one process."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import slicing_models as models
from modules import module_of
from onnx import helper, numpy_helper
from processes import facts_of, started

import engine
from engine.context import Context
from engine.sharding import NodeStrategy, Strategy, slice_model
from engine.sharding.slicing.check_inputs import generated, shapes_to_try
from engine.sharding.slicing.emulate import run_ranks
from engine.sharding.slicing.original import open_original

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)
ROOT = Path(__file__).parents[2]

RANK = """
import json, sys
import numpy as np
import engine
from engine.distributed.job import this_job

rank = this_job().rank
for folder, stem in json.loads(sys.argv[1]):
    model = engine.load(f"{folder}/{stem}{rank}.onnx")
    np.savez(f"{folder}/outputs{rank}.npz", **model(**np.load(f"{folder}/inputs.npz")))
"""


def bench_models() -> Any:
    return module_of(ROOT / "bench" / "models.py")


def batch(folder: Path) -> Path:
    """An MLP of a fixed batch, to be divided along it."""
    g = models.Builder()
    y = g.dense(g.add("Relu", g.dense("x", 8, 16)), 16, 8)
    return g.save(folder / "batch.onnx", {"x": [8, 8]}, [y])


def bert(folder: Path) -> Path:
    path: Path = module_of(ROOT / "bench" / "models.py").bert_like(
        folder, layers=2, hidden=96, heads=4, length=32
    )
    return path


def mobilenet(folder: Path) -> Path:
    path: Path = bench_models().mobilenet_v2(folder)
    return path


MODELS: dict[str, Callable[[Path], Path]] = {
    "mlp": models.mlp,
    "digits": lambda folder: ROOT / "examples" / "digits" / "digits.onnx",
    "mobilenet_v2": mobilenet,
    "bert": bert,
    "decoder": models.decoder,
    "lstm": models.lstm,
    "gathered": models.gathered,
    "odd": models.odd,
    "unknown": models.unknown,
    "column": models.column,
    "channels": models.channels,
    "batch": batch,
}
SLOW = {"mobilenet_v2", "bert", "digits", "lstm", "column"}
"""Models of the same operators as the others, larger or smaller."""
BIT_EQUAL = {"lstm", "unknown", "column", "channels", "batch"}
"""No sum goes over ranks there: columns, channels of convolutions, the batch, whole operators."""


def first_inputs(path: Path) -> dict[str, Any]:
    """Random inputs of the first shapes that fit together."""
    model = open_original(path)
    return generated(model, next(shapes_to_try(model)))


def sliced(path: Path, folder: Path, tp: int, strategy: Strategy | None = None) -> None:
    """Slice a model into a folder, beside the inputs that are to be run."""
    slice_model(path, folder, tp=tp, strategy=strategy, replicas=True, check=False)
    np.savez(folder / "inputs.npz", **first_inputs(path))


def run_in_processes(folders: Sequence[tuple[Path, str]], tp: int) -> None:
    jobs = json.dumps([(str(folder), stem) for folder, stem in folders])
    with started(RANK, tp, jobs) as ranks:
        for rank in ranks:
            facts_of(rank)


def assert_equal(path: Path, folder: Path, tp: int, *, is_exact: bool) -> None:
    """Compare what processes gave with a run of all ranks in this one, and with the model's."""
    inputs = dict(np.load(folder / "inputs.npz"))
    files = [folder / f"{path.stem}{rank}.onnx" for rank in range(tp)]
    together = run_ranks(files, inputs, Context())
    whole = engine.load(path)(**inputs)
    assert whole
    for rank in range(tp):
        got = np.load(folder / f"outputs{rank}.npz")
        for name, value in whole.items():
            np.testing.assert_array_equal(got[name], together[rank][name], strict=True)
            largest = np.abs(value).max()
            assert largest > 0
            limit = 0 if is_exact else 1e-5 * largest
            np.testing.assert_allclose(got[name], value, rtol=0, atol=limit)


@pytest.mark.parametrize(
    ("tp", "names"),
    [
        (2, MODELS.keys() - SLOW),
        pytest.param(2, SLOW, marks=pytest.mark.slow),
        pytest.param(4, MODELS.keys(), marks=pytest.mark.slow),
    ],
)
def test_ranks_give_the_models_numbers_and_the_bits_of_a_run_in_one_process(
    tp: int, names: AbstractSet[str], tmp_path: Path
) -> None:
    paths = {}
    for name in sorted(names):
        folder = tmp_path / name
        folder.mkdir()
        paths[name] = MODELS[name](folder)
        rows = {f"MatMul_{n}": NodeStrategy(((tp, 1), (1, 1))) for n in (0, 3)}
        sliced(paths[name], folder / "out", tp, Strategy(rows) if name == "batch" else None)
    run_in_processes([(tmp_path / name / "out", path.stem) for name, path in paths.items()], tp)
    for name, path in paths.items():
        assert_equal(path, tmp_path / name / "out", tp, is_exact=name in BIT_EQUAL)


@pytest.mark.slow
@pytest.mark.parametrize("tp", [2, 4])
def test_every_convolution_of_mobilenet_is_the_models_bit_for_bit(tp: int, tmp_path: Path) -> None:
    # As outputs of their own: else onnxruntime adds a block's input within the convolution before
    # the sum, which it cannot where another rank has made that, and rounds in another order.
    path = mobilenet(tmp_path)
    model = onnx.load(path)
    names = [node.output[0] for node in model.graph.node if node.op_type == "Conv"]
    kind = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    model.graph.output.extend(helper.make_value_info(name, kind) for name in names)
    onnx.save(model, path)
    report = slice_model(path, tmp_path / "out", tp=tp)
    exact = {one.output for one in report.differences if one.is_equal}
    assert exact == {*names}  # all but the classifier's, which is a sum over the ranks


@pytest.mark.slow
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize(
    "name",
    ["bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet",
     "squeezenet", "vgg19", "zfnet512"],
)  # fmt: skip
def test_the_light_models_of_onnx_in_slices(name: str, tp: int, tmp_path: Path) -> None:
    path = with_random_weights(name, tmp_path)
    report = slice_model(path, tmp_path / "out", tp=tp, check=False)
    assert report.divided_bytes > 0.9 * report.weight_bytes
    np.savez(tmp_path / "out" / "inputs.npz", **first_inputs(path))
    run_in_processes([(tmp_path / "out", path.stem)], tp)
    assert_equal(path, tmp_path / "out", tp, is_exact=False)


def with_random_weights(name: str, folder: Path) -> Path:
    """Write a light model with random weights, and the scores before its Softmax as the output.

    The file's own weights are all one value; of Softmax all but one result would be nearly zero.
    """
    place = Path(onnx.__file__).parent / "backend/test/data/light" / f"light_{name}.onnx"
    model = onnx.load(place)
    chance = np.random.default_rng(0)
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        if node.op_type == "Softmax":
            kind: Any = model.graph.output[0].type
            del model.graph.output[:]
            model.graph.output.append(helper.make_value_info(node.input[0], kind))
            continue
        if node.op_type != "ConstantOfShape" or node.input[0] not in constants:
            model.graph.node.append(node)
            continue
        shape = [int(size) for size in constants[node.input[0]]]
        scale = (2 / max(int(np.prod(shape[1:])), 1)) ** 0.5
        array = chance.standard_normal(shape) * scale
        if len(shape) == 1:
            array = 1 + np.abs(array) / 10  # variances and scales among them
        model.graph.initializer.append(
            numpy_helper.from_array(array.astype(np.float32), node.output[0])
        )
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path
