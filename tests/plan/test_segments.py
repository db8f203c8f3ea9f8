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
from plan_models import Config, refusing, save

import engine
from engine.errors import DeadlineExceeded, InputError, ModelError, ModelStateError
from engine.model.model import model_state
from engine.reference.evaluator import EvaluatorContext

Install = Callable[..., ModuleType]
X = np.linspace(-1, 1, 7, dtype=np.float32)
NO_TANH = refusing(first="Tanh")


@pytest.fixture
def first(install: Install) -> ModuleType:
    return install("first")


@pytest.fixture
def sandwich(tmp_path: Path) -> Path:
    """y = tanh(-x) - x, inner = tanh(-x): three segments, and `inner` is an output that crosses."""
    nodes = "a = Neg(x); inner = Tanh(a); y = Sub(inner, x)"
    return save(tmp_path, nodes, "(float[n] x) => (float[n] y, float[n] inner)")


def build(path: Path, config: Config = NO_TANH, **settings: dict[str, str]) -> engine.Model:
    return engine.load(path, target=["first", "second"], config={**config, **settings})


@pytest.fixture
def model(first: ModuleType, second: ModuleType, sandwich: Path) -> engine.Model:
    return build(sandwich)


def check_sandwich(outputs: list[engine.Tensor], x: np.ndarray = X) -> None:
    y, inner = (tensor.get_data_to_numpy() for tensor in outputs)
    np.testing.assert_allclose(y, np.tanh(-x) - x, rtol=1e-6)
    np.testing.assert_allclose(inner, np.tanh(-x), rtol=1e-6)


def test_the_repr_of_a_model_names_every_backend_that_runs_it(model: engine.Model) -> None:
    assert repr(model).endswith(" on first, second>")


def test_what_several_segments_of_a_backend_read_is_one_array(
    first: ModuleType, second: ModuleType, tmp_path: Path
) -> None:
    """`a` is made by the first and read twice by the second, with the first in between."""
    path = save(tmp_path, "a = Neg(x); b = Tanh(a); c = Neg(b); y = Sum(a, c)")
    model = build(path, refusing(first="Tanh,Sum"))
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
        "parts = SplitToSequence <axis = 0> (x); count = SequenceLength(parts);"
        "y = SequenceAt(parts, at); same = Identity(words); twice = StringConcat(same, same)",
        "(float[7] x, string[w] words) => (float[1] y, int64 count, string[w] twice)",
        {"at": np.array(2)},
        opsets={"": 20},
    )
    model = build(path, refusing(first="SequenceLength,SequenceAt,StringConcat"))
    outputs = model(x=X, words=np.array(["a", "ü"], object))
    np.testing.assert_array_equal(outputs["y"], X[2:3])
    assert outputs["count"].shape == ()
    assert outputs["count"] == 7
    assert outputs["twice"].tolist() == ["aa", "üü"]
    [(inputs, _)] = second.calls
    assert sorted(type(value).__name__ for value in inputs) == ["list", "ndarray"]


@pytest.mark.usefixtures("first", "second")
def test_outputs_that_nothing_computes_are_the_callers_own(tmp_path: Path) -> None:
    path = save(
        tmp_path,
        "a = Neg(x); y = Tanh(a); k = Constant <value_floats = [5.0]> ()",
        "(float[n] x) => (float[n] x, float[n] y, float[2] w, float[1] k)",
        {"w": np.float32([3, 4])},
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


@pytest.mark.parametrize(
    ("refuses", "backends", "crossing"),
    [
        (refusing(first="Tanh,Sum"), "first first second second first", 1),
        # One that cannot be made there is made once and handed over.
        (refusing(first="Tanh,Sum", second="Constant"), "first first second second first", 2),
        # And where the first cannot either, by the second, for both.
        (refusing(first="Tanh,Constant"), "second first second first first", None),
    ],
    ids=["each makes it", "the first makes it", "the second makes it"],
)
def test_a_constant_node_is_made_where_it_is_read(
    first: ModuleType, second: ModuleType, tmp_path: Path,
    refuses: Config, backends: str, crossing: int | None,
) -> None:  # fmt: skip
    nodes = "k = Constant <value_floats = [5.0]> (); a = Add(x, k); b = Tanh(a); c = Sum(b, k);"
    model = build(save(tmp_path, nodes + "y = Add(c, k)"), refuses)
    np.testing.assert_allclose(model(x=X)["y"], np.tanh(X + 5) + 10, rtol=1e-6)
    assert [placed.backend for placed in model.placement] == backends.split()
    if crossing is not None:
        assert [len(inputs) for inputs, _ in second.calls] == [crossing]


def test_buffers_are_filled_and_returned(
    model: engine.Model, first: ModuleType, second: ModuleType
) -> None:
    outputs = [engine.Tensor(np.zeros(7, np.float32)) for _ in range(2)]
    arrays = [tensor.get_data_to_numpy() for tensor in outputs]
    for scale in (1, 2, 3):
        assert model.predict([scale * X], outputs) is outputs
        check_sandwich(outputs, scale * X)
        assert all(t.get_data_to_numpy() is array for t, array in zip(outputs, arrays, strict=True))
    # The segments filled them themselves.
    made = [array for _, results in first.calls + second.calls for array in results]
    assert sum(array is arrays[0] or array is arrays[1] for array in made) == 6


def test_some_buffers_may_be_left_out(model: engine.Model) -> None:
    given = np.zeros(7, np.float32)
    for place in (0, 1):
        outputs = [engine.Tensor(), engine.Tensor()]
        outputs[place] = engine.Tensor(given)
        check_sandwich(model.predict([X], outputs))
        assert outputs[place].get_data_to_numpy() is given


def test_an_input_may_be_the_buffer_although_a_later_segment_reads_it(model: engine.Model) -> None:
    """`inner` is made by the second segment, and the third reads x: it must still be x then."""
    x = X.copy()
    outputs = model.predict([x], [engine.Tensor(), engine.Tensor(x)])
    check_sandwich(outputs)
    assert outputs[1].get_data_to_numpy() is x


@pytest.mark.usefixtures("first", "second")
@pytest.mark.parametrize("overlaps", [False, True])
def test_a_buffer_of_another_size_is_refused_by_name(tmp_path: Path, overlaps: bool) -> None:
    path = save(tmp_path, "a = Tanh(x); y = NonZero(a)", "(float[n] x) => (int64[1,found] y)")
    memory = np.array([0, 1, 1, 0], np.float32)
    buffer = memory[:2].view(np.int64).reshape(1, 1) if overlaps else np.zeros((1, 1), np.int64)
    with pytest.raises(InputError, match="output 'y'"):
        build(path).predict([memory], [engine.Tensor(buffer)])


def test_threads_have_contexts_of_their_own_in_every_segment(model: engine.Model) -> None:
    ended = []

    def work(number: int) -> None:
        for call in range(20):
            x = X * (1 + number + call / 20)
            check_sandwich(model.predict([x]), x)
        ended.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ended) == [0, 1, 2, 3]


@pytest.mark.usefixtures("first", "second")
def test_a_deadline_holds_for_all_segments_together(
    sandwich: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each segment takes 0.1 s: one of them would be in time."""
    deadlines: list[float | None] = []
    run = EvaluatorContext.run

    def noting(context: Any, inputs: Any, outputs: Any, deadline_s: float | None) -> Any:
        deadlines.append(deadline_s)
        return run(context, inputs, outputs, deadline_s)

    monkeypatch.setattr(EvaluatorContext, "run", noting)
    slow = {"delay_s": "0.1"}
    model = build(sandwich, first_context={**NO_TANH["first_context"], **slow}, second_context=slow)
    with pytest.raises(DeadlineExceeded):
        model.predict([X], timeout_s=0.15)
    deadlines.clear()
    check_sandwich(model.predict([X], timeout_s=60))
    assert len(deadlines) > 1
    assert len({*deadlines} - {None}) == 1


def test_a_deadline_needs_every_backend_of_the_plan(
    install: Install, first: ModuleType, sandwich: Path
) -> None:
    install("second", capabilities=frozenset({"dynamic_shapes"}))
    with pytest.raises(ModelStateError, match="backend 'second' cannot stop a running model"):
        build(sandwich).predict([X], timeout_s=1)
    # It counts only where it has a part.
    build(sandwich, {}).predict([X], timeout_s=60)


@pytest.mark.usefixtures("first", "second")
def test_a_model_that_fails_on_its_data_says_so_and_goes_on(tmp_path: Path) -> None:
    values = "(float[n] x) => (float[m,2] y)"
    path = save(tmp_path, "a = Tanh(x); y = Reshape(a, pairs)", values, {"pairs": [-1, 2]})
    model = build(path)
    for outputs in (None, [engine.Tensor()]):
        with pytest.raises(ModelError, match=r"predict failed! .*the model failed on this data"):
            model.predict([X], outputs)
        [y] = model.predict([X[:6]], outputs)
        np.testing.assert_allclose(y.get_data_to_numpy(), np.tanh(X[:6]).reshape(3, 2), rtol=1e-6)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (r"raise KeyError('two\nlines')", "backend 'second' raised KeyError: 'two"),
        ("return []", "backend 'second' raised TypeError: engine_predict gave 0 values for 1"),
    ],
)
def test_a_backend_at_fault_is_named(
    first: ModuleType, install: Install, sandwich: Path, fault: str, text: str
) -> None:
    hook = "\n@hookimpl\ndef engine_predict(context, inputs, outputs, deadline_s):\n    "
    install("second", extra=hook + fault)
    with pytest.raises(ModelError, match=text) as caught:
        build(sandwich).predict([X])
    assert "\n" not in str(caught.value)


def test_closing_frees_every_segment_once_the_last_predict_has_ended(
    first: ModuleType, second: ModuleType, sandwich: Path
) -> None:
    model = build(sandwich, second_context={"delay_s": "0.2"})
    executables = [*first.opened, *second.opened]
    assert len(executables) == 3
    results: list[list[engine.Tensor]] = []
    thread = threading.Thread(target=lambda: results.append(model.predict([X])))
    thread.start()
    while not first.calls:
        time.sleep(0.001)
    model.close()
    assert all(opened.evaluator is not None for opened in executables)
    thread.join()
    check_sandwich(results[0])
    del thread
    assert [opened.evaluator for opened in executables] == [None] * 3
    with pytest.raises(ModelStateError, match="closed"):
        model.predict([X])


def test_a_context_that_cannot_be_opened_closes_the_others(
    install: Install, sandwich: Path
) -> None:
    extra = """
opened, closed = [], []

class Counted:
    def __init__(self, context):
        self.run = context.run
        opened.append(self)

    def close(self):
        closed.append(self)

class Executable:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def open_context(self):
        if FAILS:
            raise OSError("no memory left")
        return Counted(self.inner.open_context())

@hookimpl
def engine_compile(loaded, options):
    return Executable(loaded.compile(options))
"""
    first = install("first", extra=extra.replace("FAILS", "False"))
    second = install("second", extra=extra.replace("FAILS", "True"))
    with pytest.raises(engine.BackendUnavailable, match="'second' is at fault: its open_context"):
        build(sandwich).predict([X])
    assert (len(first.opened), len(first.closed), second.opened) == (1, 1, [])


@pytest.mark.usefixtures("first", "second")
def test_memory_is_the_sum_of_the_segments(tmp_path: Path) -> None:
    constants = {"p": np.zeros(7, np.float32), "q": np.zeros(7, np.float32)}
    path = save(tmp_path, "a = Add(x, p); b = Tanh(a); y = Add(b, q)", constants=constants)
    model = build(path)
    plan = model_state(model).plan
    assert plan is not None
    assert plan.executable.memory() == engine.types.MemoryReport(weights_bytes=2 * 7 * 4)
    parts = {name: report.weights_bytes for name, _, report in plan.memory()}
    assert sum(parts.values()) == 2 * 7 * 4
    assert set(parts) == {"first", "second"}


def test_shapes_are_checked_and_resized_as_for_one_backend(model: engine.Model) -> None:
    assert [spec.shape for spec in model.inputs] == [("n",)]
    with pytest.raises(InputError, match=r"input 'x': expected float32\[n\], got float32\[1, 7\]"):
        model.predict([X.reshape(1, 7)])
    model.resize(model.get_inputs(), [[3]])
    assert [list(meta.shape) for meta in model.get_outputs()] == [[3], [3]]
    check_sandwich(model.predict([X[:3]]), X[:3])


def test_bounds_are_the_tightest_of_the_segments_and_must_have_a_size_in_common(
    install: Install, tmp_path: Path
) -> None:
    bounded = """
from dataclasses import replace as _replace

@hookimpl
def engine_compile(loaded, options):
    executable = loaded.compile(options)
    executable.inputs = tuple(_replace(s, bounds=(BOUNDS,)) for s in executable.inputs)
    return executable
"""
    for name, bounds, completed_by in (
        ("first", (2, 9), ("third",)), ("second", (1, 7), ()), ("third", (10, 12), ()),
    ):  # fmt: skip
        install(name, bounded.replace("BOUNDS", str(bounds)), completed_by=completed_by)
    path = save(tmp_path, "a = Neg(x); b = Tanh(x); y = Add(a, b)")
    model = build(path)
    assert [spec.bounds for spec in model.inputs] == [((2, 7),)]
    with pytest.raises(InputError, match=r"dim 0 is 8, outside 2\.\.7"):
        model.predict([np.zeros(8, np.float32)])
    with pytest.raises(
        ModelError, match=r"input 'x': dim 0 has no size .*'third' \(10, 12\), 'first' \(2"
    ):
        engine.load(path, target=["first"], config=NO_TANH)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_model_cut_in_any_way_gives_what_the_whole_gives(
    install: Install, tmp_path: Path, seed: int
) -> None:
    """40 nodes of eight operators, of which the first two backends refuse some."""
    for name in ("first", "second", "third"):
        install(name)
    generator = np.random.default_rng(seed)
    unary, binary = ["Neg", "Abs", "Tanh", "Sigmoid"], ["Add", "Sub", "Mul", "Max"]
    names = ["x", "w", "k"]
    nodes = ["k = Constant <value_floats = [0.5]> ()"]
    for index in range(40):
        count = int(generator.integers(1, 3))
        op = str(generator.choice(unary if count == 1 else binary))
        nodes.append(f"v{index} = {op}({', '.join(generator.choice(names, count))})")
        names.append(f"v{index}")
    outputs = [str(name) for name in generator.choice(names[3:], 3, replace=False)]
    values = f"(float[n] x) => ({', '.join(f'float[] {name}' for name in outputs)})"
    path = save(tmp_path, "; ".join(nodes), values, {"w": X})
    whole = engine.load(path, target="null")(x=X)
    ops = [str(op) for op in generator.permutation(unary + binary)]
    config = refusing(first=",".join(ops[:4]), second=",".join(ops[:2]))
    model = engine.load(path, target=["first", "second", "third"], config=config)
    cut = model(x=X)
    assert list(cut) == outputs
    for name in outputs:
        np.testing.assert_array_equal(cut[name], whole[name])
    homes = dict.fromkeys(ops[:2], "third") | dict.fromkeys(ops[2:4], "second")
    for placed in model.placement:
        if placed.op_type != "Constant" and "it is not run" not in placed.reason:
            assert placed.backend == homes.get(placed.op_type, "first")
