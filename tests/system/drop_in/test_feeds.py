"""Feeds and names of outputs that a Model would take: refused or answered as onnxruntime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from graphs import parsed

import engine.onnxruntime as ort

F = np.float32
MODELS = {
    "fixed": "float[2, 3]",
    "scalar": "float",
    "one": "float[1]",
    "open": "float[n]",
    "any rank": "float[]",
    "bool": "bool",
    "int": "int64",
}
FEEDS: list[tuple[str, Any]] = [
    ("fixed", np.arange(6, dtype=F)),
    ("fixed", np.arange(6, dtype=F).reshape(2, 3)),
    ("fixed", np.arange(6, dtype=F).reshape(1, 2, 3)),
    ("fixed", list(range(6))),
    ("fixed", [[0.0, 1, 2], [3, 4, 5]]),
    ("scalar", np.ones((), F)),
    ("scalar", np.ones(1, F)),
    ("scalar", np.ones((1, 1), F)),
    ("scalar", np.ones(2, F)),
    ("scalar", [1.0]),
    *(("scalar", value) for value in (1.5, 2, True, F(1.5), np.float64(1.5), np.bool_(True))),
    ("one", np.ones((), F)),
    ("one", np.ones((1, 1), F)),
    ("one", F(1)),
    ("open", np.ones((), F)),
    ("open", F(1)),
    ("any rank", np.ones(3, F)),
    ("any rank", np.ones((), F)),
    *(("bool", value) for value in (True, np.bool_(True), np.array(True), np.array([True]), 1)),
    *(("int", value) for value in (3, 2.5, True, np.int32(3), np.int64(3))),
]


def model(declared: str, outputs: str = "y") -> bytes:
    nodes = "\n".join(f"{name} = Identity (x)" for name in outputs)
    results = ", ".join(f"{declared} {name}" for name in outputs)
    return parsed(f"g ({declared} x) => ({results}) {{ {nodes} }}").SerializeToString()


def said(session: Any, names: Any, feed: Any) -> Any:
    """Return the outputs, each with its type and shape, or the exception's class and text."""
    try:
        results = session.run(names, feed)
    except Exception as error:
        return type(error), str(error)
    return [(value.dtype, value.shape, value.tolist()) for value in results]


@pytest.mark.parametrize(("of", "value"), FEEDS, ids=[f"{of}: {value!r}" for of, value in FEEDS])
def test_a_value_is_taken_or_refused_as_onnxruntime_does(of: str, value: Any) -> None:
    data = model(MODELS[of])
    expected = said(onnxruntime.InferenceSession(data), None, {"x": value})
    session = ort.InferenceSession(data)
    for _ in range(3):
        assert said(session, None, {"x": value}) == expected


def test_a_flat_array_is_refused_also_after_one_that_fits() -> None:
    session = ort.InferenceSession(model("float[2, 3]"))
    fits = np.arange(6, dtype=F).reshape(2, 3)
    state = onnxruntime.capi.onnxruntime_pybind11_state
    for _ in range(3):
        np.testing.assert_array_equal(session.run(None, {"x": fits})[0], fits)
        with pytest.raises(state.InvalidArgument, match="Invalid rank for input: x Got: 1 Expec"):
            session.run(None, {"x": fits.ravel()})


@pytest.mark.parametrize(
    "names",
    [
        "a",
        "ab",
        "",
        [],
        (),
        ["b"],
        ("b", "a"),
        ["a", "a"],
        {"a": 1},
        np.array(["b"]),
        b"a",
        5,
        ["z"],
    ],
    ids=repr,
)
def test_names_of_outputs_are_taken_or_refused_as_onnxruntime_does(names: Any) -> None:
    data = model("float[2]", "ab")
    feed = {"x": np.array([1, 2], F)}
    session = ort.InferenceSession(data)
    expected = said(onnxruntime.InferenceSession(data), names, feed)
    for _ in range(3):
        found = said(session, names, feed)
        if expected[0] is TypeError:  # its text shows the arguments, sessions' addresses included
            assert found[0] is TypeError
        else:
            assert found == expected
        assert len(session.run(None, feed)) == 2
