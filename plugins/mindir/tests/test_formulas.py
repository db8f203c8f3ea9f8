"""Primitives compute what their formulas say, by onnx's reference evaluator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

_X = np.array([[-1.5, 0.0, 2.0, 0.5], [3.0, -0.25, 1.0, -2.0]], np.float32)
_Y = np.array([[0.5, 1.0, -2.0, 0.25], [0.125, 2.0, 1.5, 1.0]], np.float32)
_SQUARE = np.array([[2, 1, 0], [0, 3, 1], [1, 0, 1]], np.float32)
_IDS = np.array([2, 0], np.int64)


def _cosine_loss(x: Any, y: Any) -> Any:
    cosine = (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1))
    return np.array([1 - cosine[0], max(cosine[1] - 0.25, 0)]).mean()


@pytest.mark.parametrize(
    ("kind", "args", "wanted"),
    [
        ("Sinc", (_X,), np.sinc(_X)),
        ("Heaviside", (_X, _Y), np.heaviside(_X, _Y)),
        ("Fmax", (np.where(_X < 0, np.nan, _X), _Y), np.fmax(np.where(_X < 0, np.nan, _X), _Y)),
        ("Fmin", (_X, np.where(_Y > 1, np.nan, _Y)), np.fmin(_X, np.where(_Y > 1, np.nan, _Y))),
        ("LogAddExp", (_X * 50, _Y * 50), np.logaddexp(_X * 50, _Y * 50)),
        ("LogAddExp2", (_X, _Y), np.logaddexp2(_X, _Y)),
        ("IsNegInf", (np.where(_X == 0, -np.inf, _X).astype(np.float32),), _X == 0),
        ("ApproximateEqual", (_X, _X + 1e-6), np.ones((2, 4), bool)),
        ("AddScalar", (_X, 2.0, 3), _X + 6),
        ("SubScalar", (_X, 2.0, 3), _X - 6),
        ("Nansum", (np.where(_X < 0, np.nan, _X), (1,)), np.where(_X < 0, 0, _X).sum(1)),
        ("Vdot", (_X[0], _Y[0]), _X[0] @ _Y[0]),
        ("MatrixDeterminant", (_SQUARE,), 7.0),
        ("Trace", (_SQUARE,), 6.0),
        ("TraceV2", (_SQUARE, 0, 0, 1, None), 6.0),
        ("TExt", (_X,), _X.T),
        ("DiagExt", (_X[0], 1), np.diag(_X[0], 1)),
        ("DiagExt", (_X[0], -2), np.diag(_X[0], -2)),
        ("Take", (_X, _IDS), _X.reshape(-1)[_IDS]),
        ("SelectV2", (_X > 0, _X, _Y), np.where(_X > 0, _X, _Y)),
        ("NewFull", (_X, (3, 2), 1.5), np.full((3, 2), 1.5)),
        ("ViewAs", (_X, _Y.T.copy()), _X.reshape(4, 2)),
        ("L1LossExt", (_X, _Y, "mean"), np.abs(_X - _Y).mean()),
        ("MSELossExt", (_X, _Y, "sum"), ((_X - _Y) ** 2).sum()),
        ("SoftMarginLoss", (_X, np.sign(_Y)), np.log1p(np.exp(-_X * np.sign(_Y))).mean()),
        ("CosineEmbeddingLoss", (_X, _Y, np.array([1, -1], "f4"), 0.25), _cosine_loss(_X, _Y)),
        (
            "MatrixSetDiagV3", (_SQUARE, np.array([7, 8], np.float32), 1),
            np.array([[2, 7, 0], [0, 3, 8], [1, 0, 1]]),
        ),
        (
            "TensorCopySlices", (_X, _Y[:, :2].copy(), (0, -3), (2, 4), (1, 2)),
            np.stack([_X[:, 0], _Y[:, 0], _X[:, 2], _Y[:, 1]], 1),
        ),
        (
            "KVCacheScatterUpdate",
            (_X.reshape(1, 1, 4, 2), np.array([2]), _Y.reshape(1, 2, 2, 2)[:, :1], 2),
            np.concatenate([_X.reshape(4, 2)[:2], _Y.reshape(4, 2)[:2]]).reshape(1, 1, 4, 2),
        ),
    ],
)  # fmt: skip
def test_a_primitive_computes_its_formula(
    mindir: SimpleNamespace, kind: str, args: tuple[Any, ...], wanted: Any
) -> None:
    constants, names, inputs, fed = [], [], [], []
    for place, arg in enumerate(args):
        name = f"G:in{place}"
        if isinstance(arg, np.ndarray):
            onnx_type = {"float32": 1, "int64": 7, "bool": 9}[arg.dtype.name]
            inputs.append(mindir.value(name, *arg.shape, data_type=onnx_type))
            fed.append(arg)
        else:
            constants.append(mindir.constant(name, arg))
        names.append(name)
    result = np.asarray(wanted)
    data_type = 9 if result.dtype == bool else 1
    nodes = [
        *constants,
        mindir.node(kind, names, "G:y:1", mindir.typed(*result.shape, data_type=data_type)),
    ]
    [found] = mindir.run(
        mindir.net(nodes, inputs, [mindir.value("G:y:1", *result.shape, data_type=data_type)]), *fed
    )
    np.testing.assert_allclose(found, result, rtol=1e-5, atol=1e-6)


_PATH = np.eye(3, dtype=np.float32)[[[0, 1], [0, 2], [2, 0], [0, 0], [1, 1]]]  # blank: 2


@pytest.mark.parametrize(
    ("kind", "args", "at", "wanted"),
    [
        ("LogMatrixDeterminant", (-_SQUARE,), 0, np.float32(-1)),
        ("LogMatrixDeterminant", (-_SQUARE,), 1, np.log(np.float32(7))),
        ("CTCGreedyDecoder", (_PATH, [5, 3]), 0, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]),
        ("CTCGreedyDecoder", (_PATH, [5, 3]), 1, [0, 0, 1, 1, 0]),
        ("CTCGreedyDecoder", (_PATH, [5, 3]), 2, [2, 3]),
        ("CTCGreedyDecoder", (_PATH, [5, 3]), 3, np.array([[-5], [-3]], np.float32)),
    ],
)
def test_a_primitive_computes_each_of_its_results(
    mindir: SimpleNamespace, kind: str, args: tuple[Any, ...], at: int, wanted: Any
) -> None:
    wanted = np.asarray(wanted)
    data_type = 1 if wanted.dtype == np.float32 else 7
    rest = [mindir.constant(f"in{n}", np.array(arg)) for n, arg in enumerate(args[1:], 1)]
    names = ["x", *(f"in{n}" for n in range(1, len(args)))]
    nodes = [
        *rest, mindir.constant("at", at), mindir.node(kind, names, "all"),
        mindir.node(
            "TupleGetItem", ["all", "at"], "z", mindir.typed(*wanted.shape, data_type=data_type)
        ),
    ]  # fmt: skip
    [found] = mindir.run(
        mindir.net(
            nodes, {"x": (*args[0].shape,)}, [mindir.value("z", *wanted.shape, data_type=data_type)]
        ),
        args[0],
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_range_of_numbers_is_a_tuple_of_them(mindir: SimpleNamespace) -> None:
    ends = [mindir.constant(f"end{at}", end) for at, end in enumerate((1, -1, -1))]
    nodes = [
        *ends, mindir.node("make_range", ["end0", "end1", "end2"], "axes"),
        mindir.node("Transpose", ["x", "axes"], "z", mindir.typed(4, 2)),
    ]  # fmt: skip
    [found] = mindir.run(mindir.net(nodes, {"x": (2, 4)}, {"z": (4, 2)}), _X)
    np.testing.assert_array_equal(found, _X.T)


def test_a_fused_gru_runs_the_equations_of_its_gates(mindir: SimpleNamespace) -> None:
    random = np.random.default_rng(0)
    steps, batch, width, size = 3, 2, 4, 5
    x, h = random.normal(size=(steps, batch, width)), random.normal(size=(batch, size))
    w, r = random.normal(size=(width, 3 * size)), random.normal(size=(size, 3 * size))
    b, c = random.normal(size=3 * size), random.normal(size=3 * size)
    wanted, state = [], h
    for step in x:
        of_input, of_state = step @ w + b, state @ r + c
        reset, update = (
            1 / (1 + np.exp(-(of_input + of_state)[:, at * size : (at + 1) * size]))
            for at in (0, 1)
        )
        new = np.tanh(of_input[:, 2 * size :] + reset * of_state[:, 2 * size :])
        state = (1 - update) * new + update * state
        wanted.append(state)
    arrays = [each.astype(np.float32) for each in (x, w, r, b, c, h)]
    names = [f"G:in{place}" for place in range(6)]
    nodes = [
        mindir.constant("none", None), mindir.constant("first", 0),
        mindir.node(
            "DynamicGRUV2", [*names[:5], "none", names[5]], "G:gru:1",
            mindir.scalar("gate_order", "rzh"), mindir.scalar("reset_after", True),
        ),
        mindir.node(
            "TupleGetItem", ["G:gru:1", "first"], "G:y:2", mindir.typed(steps, batch, size)
        ),
    ]  # fmt: skip
    [found] = mindir.run(
        mindir.net(
            nodes,
            [mindir.value(name, *each.shape) for name, each in zip(names, arrays, strict=True)],
            {"G:y:2": (steps, batch, size)},
        ),
        *arrays,
    )
    np.testing.assert_allclose(found, np.stack(wanted), rtol=1e-4, atol=1e-5)
