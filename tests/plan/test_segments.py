"""A model of several segments runs as one: the same calls, the same errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from plan_models import node, save, value

import engine
from engine.errors import DeadlineExceeded, InputError, ModelError, ModelStateError
from engine.model.model import model_state
from engine.reference.evaluator import EvaluatorContext

Install = Callable[..., ModuleType]
X = np.linspace(-1, 1, 7, dtype=np.float32)
REFUSES = {"first_context": {"unsupported_ops": "Tanh"}}


@pytest.fixture
def first(null_backend: str, install: Install) -> ModuleType:
    return install("first")


@pytest.fixture
def second(install: Install, first: ModuleType) -> ModuleType:
    return install("second")


def build(path: Path, **config: dict[str, str]) -> engine.Model:
    refuses = {**REFUSES, **config}
    return engine.load(path, target=["first", "second"], config=refuses)


def sandwich(folder: Path) -> Path:
    """y = tanh(-x) - x, inner = tanh(-x): three segments, and `inner` is an output that crosses."""
    return save(
        folder,
        [node("Neg", "x", "a"), node("Tanh", "a", "inner"), node("Sub", "inner x", "y")],
        outputs=[value("y"), value("inner")],
    )


def test_the_repr_of_a_model_names_every_backend_that_runs_it(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    with build(sandwich(tmp_path)) as model:
        assert repr(model).endswith(" on first, second>")


# -------------------------------------------------------------------------------- values that cross


def test_what_several_segments_of_a_backend_read_is_one_array(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    """`a` is made by the first and read twice by the second, with the first in between."""
    path = save(
        tmp_path,
        [
            node("Neg", "x", "a"),
            node("Tanh", "a", "b"),
            node("Neg", "b", "c"),
            helper.make_node("Sum", ["a", "c"], ["y"], name="make_y"),
        ],
    )
    model = build(path, first_context={"unsupported_ops": "Tanh,Sum"})
    np.testing.assert_allclose(model(x=X)["y"], -X - np.tanh(-X), rtol=1e-6)
    assert len(model.placement) == 4
    (_, [a]), _ = first.calls
    taken = [array for inputs, _ in second.calls for array in inputs if array is a]
    assert len(second.calls) == len(taken) == 2


def test_text_sequences_and_scalars_cross(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    path = save(
        tmp_path,
        [
            node("SplitToSequence", "x", "parts", axis=0),
            node("SequenceLength", "parts", "count"),
            node("SequenceAt", "parts at", "y"),
            node("Identity", "words", "same"),
            node("StringConcat", "same same", "twice"),
        ],
        inputs=[value("x", [7]), value("words", ["w"], TensorProto.STRING)],
        outputs=[
            value("y", [1]),
            value("count", [], TensorProto.INT64),
            value("twice", ["w"], TensorProto.STRING),
        ],
        constants={"at": np.array(2, np.int64)},
        opsets={"": 20},
    )
    refuses = "SequenceLength,SequenceAt,StringConcat"
    outputs = build(path, first_context={"unsupported_ops": refuses})(
        x=X, words=np.array(["a", "ü"], object)
    )
    np.testing.assert_array_equal(outputs["y"], X[2:3])
    assert outputs["count"].shape == ()
    assert outputs["count"] == 7
    assert outputs["twice"].tolist() == ["aa", "üü"]
    [(inputs, _)] = second.calls
    assert sorted(type(each).__name__ for each in inputs) == ["list", "ndarray"]


def test_outputs_that_nothing_computes_are_the_callers_own(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    path = save(
        tmp_path,
        [
            node("Neg", "x", "a"),
            node("Tanh", "a", "y"),
            node("Constant", "", "k", value_floats=[5.0]),
        ],
        outputs=[value("x"), value("y"), value("w", [2]), value("k", [1])],
        constants={"w": np.array([3, 4], np.float32)},
    )
    model = build(path)
    x = X.copy()
    kept = model(x=x)
    for _ in range(2):
        outputs = model(x=x)
        np.testing.assert_array_equal(outputs["x"], X)
        assert (outputs["w"].tolist(), outputs["k"].tolist()) == ([3, 4], [5])
        for array in outputs.values():
            array[:] = 99  # the next call must not see it
        np.testing.assert_array_equal(x, X)
    np.testing.assert_allclose(kept["y"], np.tanh(-X), rtol=1e-6)


def test_a_constant_node_is_made_where_it_is_read(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    nodes = [
        node("Constant", "", "k", value_floats=[5.0]),
        node("Add", "x k", "a"),
        node("Tanh", "a", "b"),
        node("Sum", "b k", "c"),
        node("Add", "c k", "y"),
    ]
    expected = np.tanh(X + 5) + 10
    config = {"first_context": {"unsupported_ops": "Tanh,Sum"}}
    model = build(save(tmp_path, nodes), **config)
    np.testing.assert_allclose(model(x=X)["y"], expected, rtol=1e-6)
    assert [len(inputs) for inputs, _ in second.calls] == [1]
    assert [each.backend for each in model.placement] == ["first"] * 2 + ["second"] * 2 + ["first"]
    # One that cannot be made there is made once and handed over.
    second.calls.clear()
    model = build(save(tmp_path, nodes), **config, second_context={"unsupported_ops": "Constant"})
    np.testing.assert_allclose(model(x=X)["y"], expected, rtol=1e-6)
    assert [len(inputs) for inputs, _ in second.calls] == [2]
    # And where the first cannot either, by the second, for both.
    config = {"first_context": {"unsupported_ops": "Tanh,Constant"}}
    model = build(save(tmp_path, nodes), **config)
    np.testing.assert_allclose(model(x=X)["y"], expected, rtol=1e-6)
    assert [each.backend for each in model.placement][:2] == ["second", "first"]


# ------------------------------------------------------------------------------------ given buffers


def test_buffers_are_filled_and_returned(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    model = build(sandwich(tmp_path))
    y, inner = (engine.Tensor(np.zeros(7, np.float32)) for _ in range(2))
    arrays = [y.get_data_to_numpy(), inner.get_data_to_numpy()]
    for scale in (1, 2, 3):
        x = scale * X
        outputs = [y, inner]
        assert model.predict([x], outputs) is outputs
        assert [y.get_data_to_numpy(), inner.get_data_to_numpy()] == [
            pytest.approx(np.tanh(-x) - x), pytest.approx(np.tanh(-x)),
        ]  # fmt: skip
        assert y.get_data_to_numpy() is arrays[0]
        assert inner.get_data_to_numpy() is arrays[1]
    # The segments filled them themselves.
    made = [array for _, results in first.calls + second.calls for array in results]
    assert sum(array is arrays[0] or array is arrays[1] for array in made) == 6


def test_some_buffers_may_be_left_out(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    model = build(sandwich(tmp_path))
    given = np.zeros(7, np.float32)
    for place in (0, 1):
        outputs = [engine.Tensor(), engine.Tensor()]
        outputs[place] = engine.Tensor(given)
        y, inner = model.predict([X], outputs)
        np.testing.assert_allclose(y.get_data_to_numpy(), np.tanh(-X) - X, rtol=1e-6)
        np.testing.assert_allclose(inner.get_data_to_numpy(), np.tanh(-X), rtol=1e-6)
        assert (y, inner)[place].get_data_to_numpy() is given


def test_an_input_may_be_the_buffer_although_a_later_segment_reads_it(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    """`inner` is made by the second segment, and the third reads x: it must still be x then."""
    model = build(sandwich(tmp_path))
    x = X.copy()
    outputs = [engine.Tensor(), engine.Tensor(x)]
    y, inner = model.predict([x], outputs)
    np.testing.assert_allclose(y.get_data_to_numpy(), np.tanh(-X) - X, rtol=1e-6)
    assert inner.get_data_to_numpy() is x
    np.testing.assert_allclose(x, np.tanh(-X), rtol=1e-6)


def test_a_buffer_for_an_input_that_is_an_output_is_filled(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    path = save(
        tmp_path,
        [node("Neg", "x", "a"), node("Tanh", "a", "y")],
        outputs=[value("y"), value("x")],
    )
    buffers = [np.zeros(7, np.float32) for _ in range(2)]
    build(path).predict([X], [engine.Tensor(each) for each in buffers])
    np.testing.assert_allclose(buffers[0], np.tanh(-X), rtol=1e-6)
    np.testing.assert_array_equal(buffers[1], X)


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_buffer_of_another_size_is_refused_by_name(
    first: ModuleType, second: ModuleType, tmp_path: Path, overlaps: bool
) -> None:
    path = save(
        tmp_path,
        [node("Tanh", "x", "a"), node("NonZero", "a", "y")],
        outputs=[value("y", [1, "found"], TensorProto.INT64)],
    )
    memory = np.array([0, 1, 1, 0], np.float32)
    buffer = memory[:2].view(np.int64).reshape(1, 1) if overlaps else np.zeros((1, 1), np.int64)
    with pytest.raises(InputError, match="output 'y'"):
        build(path).predict([memory], [engine.Tensor(buffer)])


# ------------------------------------------------------------------------------- threads, deadlines


def test_threads_have_contexts_of_their_own_in_every_segment(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    model = build(sandwich(tmp_path))
    wrong: list[int] = []

    def work(number: int) -> None:
        for call in range(20):
            x = X * (1 + number + call / 20)
            y, inner = model.predict([x])
            close = np.allclose(y.get_data_to_numpy(), np.tanh(-x) - x)
            if not close or not np.allclose(inner.get_data_to_numpy(), np.tanh(-x)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_deadline_holds_for_all_segments_together(
    first: ModuleType, second: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each segment takes 0.1 s: one of them would be in time."""
    deadlines: list[float | None] = []
    run = EvaluatorContext.run

    def noting(context: Any, inputs: Any, outputs: Any, deadline_s: float | None) -> Any:
        deadlines.append(deadline_s)
        return run(context, inputs, outputs, deadline_s)

    monkeypatch.setattr(EvaluatorContext, "run", noting)
    model = build(
        sandwich(tmp_path),
        first_context={"unsupported_ops": "Tanh", "delay_s": "0.1"},
        second_context={"delay_s": "0.1"},
    )
    with pytest.raises(DeadlineExceeded):
        model.predict([X], timeout_s=0.15)
    deadlines.clear()
    [y, _] = model.predict([X], timeout_s=60)
    assert len(deadlines) > 1
    assert len({*deadlines} - {None}) == 1
    np.testing.assert_allclose(y.get_data_to_numpy(), np.tanh(-X) - X, rtol=1e-6)


def test_a_deadline_needs_every_backend_of_the_plan(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    install("first")
    install("second", capabilities=frozenset({"dynamic_shapes"}))
    model = build(sandwich(tmp_path))
    with pytest.raises(ModelStateError, match="backend 'second' cannot stop a running model"):
        model.predict([X], timeout_s=1)
    # It counts only where it has a part.
    whole = engine.load(sandwich(tmp_path), target=["first", "second"])
    whole.predict([X], timeout_s=60)


# ------------------------------------------------------------------------------------- errors, ends


def test_a_model_that_fails_on_its_data_says_so_and_goes_on(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    path = save(
        tmp_path,
        [node("Tanh", "x", "a"), node("Reshape", "a pairs", "y")],
        outputs=[value("y", ["m", 2])],
        constants={"pairs": np.array([-1, 2], np.int64)},
    )
    model = build(path)
    for outputs in (None, [engine.Tensor()]):
        with pytest.raises(ModelError, match=r"predict failed! .*the model failed on this data"):
            model.predict([X], outputs)
        [y] = model.predict([X[:6]], outputs)
        np.testing.assert_allclose(y.get_data_to_numpy(), np.tanh(X[:6]).reshape(3, 2), rtol=1e-6)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("raise KeyError('two\\nlines')", "backend 'second' raised KeyError: 'two"),
        ("return []", "backend 'second' raised TypeError: engine_predict gave 0 values for 1"),
    ],
)
def test_a_backend_at_fault_is_named(
    first: ModuleType, install: Install, tmp_path: Path, fault: str, text: str
) -> None:
    install("second", extra=f"""
@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    {fault!s}
""".replace("\nlines", "\\nlines"))  # fmt: skip
    with pytest.raises(ModelError, match=text) as caught:
        build(sandwich(tmp_path)).predict([X])
    assert "\n" not in str(caught.value)


def test_closing_frees_every_segment_once_the_last_predict_has_ended(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    model = build(sandwich(tmp_path), second_context={"delay_s": "0.2"})
    executables = [*first.opened, *second.opened]
    assert len(executables) == 3
    results: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: results.append(model(x=X)["y"]))
    thread.start()
    while not first.calls:
        time.sleep(0.001)
    model.close()
    assert all(each.evaluator is not None for each in executables)
    thread.join()
    np.testing.assert_allclose(results[0], np.tanh(-X) - X, rtol=1e-6)
    del thread
    assert [each.evaluator for each in executables] == [None] * 3
    with pytest.raises(ModelStateError, match="closed"):
        model.predict([X])


FAILS_TO_OPEN = """
class Counted:
    opened = closed = 0

    def __init__(self, context):
        self.run = context.run
        Counted.opened += 1

    def close(self):
        Counted.closed += 1

class Executable:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def open_context(self):
        if {fails}:
            raise OSError("no memory left")
        return Counted(self.inner.open_context())

@hookimpl
def engine_compile(loaded, options):
    return Executable(loaded.compile(options))
"""


def test_a_context_that_cannot_be_opened_closes_the_others(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    first = install("first", extra=FAILS_TO_OPEN.format(fails=False))
    second = install("second", extra=FAILS_TO_OPEN.format(fails=True))
    model = build(sandwich(tmp_path))
    with pytest.raises(engine.BackendUnavailable, match="'second' is at fault: its open_context"):
        model.predict([X])
    assert (first.Counted.opened, first.Counted.closed) == (1, 1)
    assert second.Counted.opened == 0


def test_memory_is_the_sum_of_the_segments(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    path = save(
        tmp_path,
        [node("Add", "x p", "a"), node("Tanh", "a", "b"), node("Add", "b q", "y")],
        constants={"p": np.zeros(7, np.float32), "q": np.zeros(7, np.float32)},
    )
    model = build(path)
    plan = model_state(model).plan
    assert plan is not None
    assert plan.executable.memory() == engine.types.MemoryReport(weights_bytes=2 * 7 * 4)
    parts = {name: report.weights_bytes for name, _, report in plan.memory()}
    assert sum(parts.values()) == 2 * 7 * 4
    assert set(parts) == {"first", "second"}


def test_shapes_are_checked_and_resized_as_for_one_backend(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    model = build(sandwich(tmp_path))
    assert [spec.shape for spec in model.inputs] == [("n",)]
    with pytest.raises(InputError, match=r"input 'x': expected float32\[n\], got float32\[1, 7\]"):
        model.predict([X.reshape(1, 7)])
    model.resize(model.get_inputs(), [[3]])
    assert [list(meta.shape) for meta in model.get_outputs()] == [[3], [3]]
    np.testing.assert_allclose(model(x=X[:3])["y"], np.tanh(-X[:3]) - X[:3], rtol=1e-6)


def test_bounds_are_the_tightest_of_the_segments_that_read_the_input(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    bounded = """
from dataclasses import replace as _replace

@hookimpl
def engine_compile(loaded, options):
    executable = loaded.compile(options)
    executable.inputs = tuple(_replace(s, bounds=({bounds},)) for s in executable.inputs)
    return executable
"""
    install("first", extra=bounded.format(bounds=(2, 9)))
    install("second", extra=bounded.format(bounds=(1, 7)))
    path = save(tmp_path, [node("Neg", "x", "a"), node("Tanh", "x", "b"), node("Add", "a b", "y")])
    model = build(path)
    assert [spec.bounds for spec in model.inputs] == [((2, 7),)]
    with pytest.raises(InputError, match=r"dim 0 is 8, outside 2\.\.7"):
        model.predict([np.zeros(8, np.float32)])


# ------------------------------------------------------------------------- against the whole model


@pytest.mark.parametrize("seed", range(12))
def test_a_random_model_cut_in_any_way_gives_what_the_whole_gives(
    null_backend: str, install: Install, tmp_path: Path, seed: int
) -> None:
    """40 nodes of eight operators, of which the first two backends refuse some."""
    for name in ("first", "second", "third"):
        install(name)
    generator = np.random.default_rng(seed)
    unary, binary = ["Neg", "Abs", "Tanh", "Sigmoid"], ["Add", "Sub", "Mul", "Max"]
    names = ["x", "w", "k"]
    nodes = [node("Constant", "", "k", value_floats=[0.5])]
    for index in range(40):
        count = int(generator.integers(1, 3))
        op = str(generator.choice(unary if count == 1 else binary))
        reads = " ".join(str(name) for name in generator.choice(names, count))
        nodes.append(node(op, reads, f"v{index}"))
        names.append(f"v{index}")
    outputs = [str(name) for name in generator.choice(names[3:], 3, replace=False)]
    path = save(
        tmp_path,
        nodes,
        outputs=[value(name, None) for name in outputs],
        constants={"w": np.linspace(-1, 1, 7, dtype=np.float32)},
    )
    whole = engine.load(path, target="null")(x=X)
    ops = [str(op) for op in generator.permutation(unary + binary)]
    config = {
        "first_context": {"unsupported_ops": ",".join(ops[:4])},
        "second_context": {"unsupported_ops": ",".join(ops[:2])},
    }
    model = engine.load(path, target=["first", "second", "third"], config=config)
    cut = model(x=X)
    assert list(cut) == outputs
    for name in outputs:
        np.testing.assert_array_equal(cut[name], whole[name])
    homes = dict.fromkeys(ops[:2], "third") | dict.fromkeys(ops[2:4], "second")
    for each in model.placement:
        if each.op_type != "Constant" and "it is not run" not in each.reason:
            assert each.backend == homes.get(each.op_type, "first")
