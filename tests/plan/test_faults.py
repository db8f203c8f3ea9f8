"""Plans on backends that fail, lack or refuse something, and what they leave behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from plan_models import chain, external, plan_of, predicting, refusing, save

import engine
from engine.errors import (
    BackendUnavailable,
    CommunicatorError,
    DeadlineExceeded,
    InputError,
    ModelError,
)
from engine.formats import open_source
from engine.plan import BuildOptions, Targets, build_plan
from engine.plan.mixed.part_options import part_options
from engine.plan.plan import Plan
from engine.runtime import fitting, resizing
from engine.runtime.signature import Signature
from engine.types import CompileOptions, Device, DeviceBuffer, DType, ShapeRange, TensorSpec

needs_cpu = pytest.mark.skipif(
    find_spec("engine_cpu") is None, reason="the cpu backend is not installed"
)

Install = Callable[..., ModuleType]
WHERE = Device("null", 0)
NO_TANH = refusing(first="Tanh")
NO_TANH_ON_DEVICE = refusing(device="Tanh")
LINE = np.linspace(-1, 1, 5, dtype=np.float32)

# A second predict can be told to fail.
FAILS = """
failing = []

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    if failing:
        raise failing.pop()
    return context.run(inputs, outputs, deadline_s)
"""


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("runs", [1, 4])
def test_an_output_buffer_that_is_an_input_too_is_filled_last(
    kind: str, runs: int, install_device: Install, second: ModuleType, tmp_path: Path
) -> None:
    device = install_device()
    nodes, values = (
        "y = Neg(x); t = Tanh(y); z = Add(t, x)",
        "(float[n] x) => (float[n] y, float[n] z)",
    )
    plan = plan_of(save(tmp_path, nodes, values), ["device", "second"], NO_TANH_ON_DEVICE)
    predict = predicting(plan)
    for _ in range(runs):
        both: Any = LINE.copy() if kind == "host" else device.allocate(LINE.copy(), WHERE)
        y, z = predict(both, outputs=[both, None])
        assert y is both
        held = device.memory[both.pointer] if isinstance(both, DeviceBuffer) else both
        np.testing.assert_array_equal(held, -LINE)
        np.testing.assert_allclose(z, np.tanh(-LINE) + LINE, rtol=1e-6)


def test_an_input_that_is_an_output_too_is_read_before_its_memory_is_filled(
    install: Install, second: ModuleType, tmp_path: Path
) -> None:
    install("first")
    path = save(tmp_path, "a = Neg(x); y = Tanh(a)", "(float[n] x) => (float[n] y, float[n] x)")
    predict = predicting(plan_of(path, ["first", "second"], NO_TANH))
    for _ in range(4):
        both, copy = LINE.copy(), np.zeros(5, np.float32)
        predict(both, outputs=[both, copy])
        np.testing.assert_allclose(both, np.tanh(-LINE), rtol=1e-6)
        np.testing.assert_array_equal(copy, LINE)


@needs_cpu
@pytest.mark.parametrize("runs", [1, 2, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_a_reset_context_has_let_go_of_the_callers_arrays(
    runs: int, fails: bool, install: Install, tmp_path: Path
) -> None:
    first = install("first", extra=FAILS)
    plan = plan_of(chain(tmp_path, "Tanh", "Neg", "Tanh"), ["first", "cpu"], NO_TANH)
    lease = plan.pool.borrow()

    def run() -> list[weakref.ref[np.ndarray]]:
        x, y = LINE.copy(), np.zeros(5, np.float32)
        given, wanted = [x], [y]
        for _ in range(runs):
            plan.predict(lease.context, given, wanted, None)
        np.testing.assert_allclose(y, np.tanh(-np.tanh(x)), rtol=1e-5)
        if fails:
            first.failing.append(DeadlineExceeded("late"))
            with pytest.raises(DeadlineExceeded):
                plan.predict(lease.context, given, wanted, None)
        return [weakref.ref(x), weakref.ref(y)]

    kept = run()
    first.calls.clear()
    plan.pool.give_back(lease)
    plan.pool.retire(lease)
    gc.collect()
    assert [array() for array in kept] == [None, None]


Steady = tuple[Plan, ModuleType, ModuleType, Callable[..., Any]]


@pytest.fixture
def steady(install: Install, tmp_path: Path) -> Steady:
    """Neg, Tanh, Neg on two backends, run until its buffers stay; its modules and a predict."""
    first, second = install("first"), install("second", extra=FAILS)
    plan = plan_of(chain(tmp_path, "Neg", "Tanh", "Neg"), ["first", "second"], NO_TANH)
    predict = predicting(plan)
    for _ in range(3):
        predict(LINE)
    return plan, first, second, predict


def test_a_failure_that_no_shape_explains_leaves_the_buffers_in_use(steady: Steady) -> None:
    plan, _, second, predict = steady
    second.failing.append(RuntimeError("once"))
    np.testing.assert_allclose(predict(LINE)[0], -np.tanh(-LINE), rtol=1e-6)
    assert plan.executable.steady == [True, True, True]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "error",
    [BackendUnavailable("device busy", "second"), CommunicatorError("rank 1 has aborted", (1,))],
    ids=["a device", "another rank"],
)
def test_a_segment_that_fails_for_good_is_not_run_again(error: Exception, steady: Steady) -> None:
    _, _, second, predict = steady
    second.failing.append(error)
    with pytest.raises(type(error), match=r"device busy|rank 1 has aborted"):
        predict(LINE)


def test_a_buffer_that_does_not_fit_does_not_run_the_model_again(steady: Steady) -> None:
    _, first, _, predict = steady
    first.calls.clear()
    overlapping = np.zeros(6, np.float32)
    with pytest.raises(InputError, match=r"output 'y': the result has shape \[5\]"):
        predict(overlapping[:5], outputs=[overlapping])
    assert len(first.calls) == 2


def test_what_was_compiled_is_closed_where_its_weights_have_no_memory(
    install_device: Install, tmp_path: Path
) -> None:
    device = install_device("""
closed = []
_open = FakeExecutable.__init__

def _noting(self, inner, options):
    _open(self, inner, options)
    self.close = lambda: closed.append(options)

FakeExecutable.__init__ = _noting

@hookimpl
def engine_buffer(device, dtype, shape, on_host):
    from engine.errors import BackendUnavailable

    raise BackendUnavailable("no memory left", "device")
""")
    path = save(tmp_path, "y = Add(x, w)", constants={"w": np.float32([1.0])})
    with pytest.raises(BackendUnavailable, match="no memory left"):
        plan_of(path, ["device"], variable_weights=("w",))
    assert len(device.closed) == 1


def test_a_build_asks_for_the_devices_once(install_device: Install, tmp_path: Path) -> None:
    device = install_device("""
asked = []
_devices = null.engine_devices

@hookimpl
def engine_devices():
    asked.append(1)
    return _devices()
""")
    plan = plan_of(chain(tmp_path, "Neg"), ["device"])
    assert plan.devices == (WHERE,)
    assert len(device.asked) == 1


def test_a_model_in_a_format_that_a_backend_does_not_list_is_refused(
    install: Install, second: ModuleType, tmp_path: Path
) -> None:
    first = install("first", formats=("plan",), suffixes={".plan": "plan"})
    path = chain(tmp_path, "Neg")
    with pytest.raises(ModelError, match=r"backend 'first' reads plan, .*onnx"):
        plan_of(path, ["first"])
    plan = plan_of(path, ["first", "second"])
    assert plan.backend.name == "second"
    assert "reads plan" in plan.why
    install("third")
    plan = plan_of(path, ["third", "first", "second"], refusing(third="Neg"))
    assert plan.backend.name == "second"
    assert first.loads == []


def lacking(*capabilities: str) -> str:
    lacks = dict.fromkeys(capabilities, "the runtime is too old")
    return f"""
@hookimpl
def engine_devices():
    from engine.types import DeviceInfo, Devices

    return Devices((DeviceInfo(DEVICE, "old", None, {lacks!r}),))
"""


def test_a_device_that_cannot_share_a_workspace_is_opened_beside_none(
    install_device: Install, second: ModuleType, tmp_path: Path
) -> None:
    device = install_device(lacking("share_workspace"))
    path = chain(tmp_path, "Neg", "Tanh", "Neg")
    plan_of(path, ["device", "second"], NO_TANH_ON_DEVICE).pool.borrow()
    assert [beside for _, beside in device.neighbours] == [None, None]


def test_a_device_that_reads_no_files_in_memory_gets_them_inlined(
    install_device: Install, tmp_path: Path
) -> None:
    noting = """
sources = []
_load_model = engine_load

@hookimpl
def engine_load(source, options):
    sources.append(source)
    return _load_model(source, options)
"""
    x, w = np.ones(3, np.float32), np.float32([1, 2, 3])
    plain = open_source(external(save(tmp_path, "y = Add(x, w)", constants={"w": w})))
    in_memory = replace(plain, files={"w.bin": (tmp_path / "w.bin").read_bytes()}, versions={})
    (tmp_path / "w.bin").unlink()
    device = install_device(noting + lacking("files_in_memory"))
    context = engine.Context()
    context.target = ["device"]
    plan = build_plan(in_memory, Targets(BuildOptions(context, {})))
    np.testing.assert_array_equal(predicting(plan)(x)[0], x + w)
    assert [dict(source.files) for source in device.sources] == [{}]


def test_a_device_that_cannot_run_parts_gets_none(
    install_device: Install, second: ModuleType, tmp_path: Path
) -> None:
    install_device(lacking("mixed_placement"))
    path = chain(tmp_path, "Neg", "Tanh", "Neg")
    with pytest.raises(ModelError, match="cannot run Tanh"):
        plan_of(path, ["device"], NO_TANH_ON_DEVICE)
    plan = plan_of(path, ["device", "second"], NO_TANH_ON_DEVICE)
    assert plan.backend.name == "second"
    assert len(second.loads) == 1


def test_a_plan_lacks_only_what_a_backend_that_runs_nodes_lacks(
    install_device: Install, second: ModuleType, install: Install, tmp_path: Path
) -> None:
    install_device()  # announces no deadlines
    install("third")
    path = chain(tmp_path, "Neg", "Tanh", "Neg")
    with_target = plan_of(path, ["device", "second"], NO_TANH_ON_DEVICE)
    assert with_target.lacks("deadlines") == ("device", "")
    config = refusing(device="Neg,Tanh", second="Tanh")
    without = plan_of(path, ["device", "second", "third"], config)
    assert {backend.name for backend, _ in without.parts} == {"second", "third"}
    assert without.lacks("deadlines") == ("", "")


def test_a_part_whose_ranges_nobody_knows_has_no_profiles() -> None:
    class Ranges:
        def of(self, given: Any, names: Any) -> dict[str, ShapeRange]:
            return {name: given[name] for name in names if name in given}

    asked = {"x": ShapeRange((1,), (2,), (3,))}
    options = CompileOptions(device=WHERE, shapes=asked, profiles=(asked, asked))
    part = part_options(options, Ranges(), ["inside"], (), "plan")  # type: ignore[arg-type]
    assert (part.shapes, part.profiles) == ({}, ())
    part = part_options(options, Ranges(), ["x"], (), "plan")  # type: ignore[arg-type]
    assert (part.shapes, part.profiles) == (asked, (asked, asked))


def test_bounds_hold_for_an_input_of_unknown_rank() -> None:
    spec = TensorSpec("x", DType.FLOAT32, None, bounds=((1, 4), None))
    signature = Signature([spec], [replace(spec, name="y", bounds=())])
    assert fitting.bind(signature, [np.zeros((4, 9), np.float32)]) == {}
    with pytest.raises(InputError, match=r"dim 0 is 5, outside 1\.\.4"):
        fitting.bind(signature, [np.zeros((5, 9), np.float32)])
    with pytest.raises(InputError, match="'x'"):
        fitting.bind(signature, [np.zeros(4, np.float32)])
    with pytest.raises(InputError, match="expected 2 dims"):
        resizing.resized(signature, [[1, 2, 3]])
    with pytest.raises(InputError, match=r"dim 0 is 5, outside 1\.\.4"):
        resizing.resized(signature, [[5, 2]])


def test_text_is_never_sent_to_a_device(
    install_device: Install, second: ModuleType, tmp_path: Path
) -> None:
    install_device()
    values = "(string[n] x, float[n] n) => (string[n] y, float[n] m)"
    path = save(tmp_path, "y = Identity(x); m = Neg(n)", values)
    plan = plan_of(path, ["device", "second"], refusing(device="Identity"))
    inputs = [np.array(["a"], object), np.ones(1, np.float32)]
    signature = Signature(plan.executable.inputs, plan.executable.outputs)
    with pytest.raises(InputError, match=r"output 'y' is .*cannot be put on null:0"):
        fitting.check_buffers(signature, [WHERE, None], inputs)
    with pytest.raises(InputError, match="'y' is text, which cannot be put on null:0") as caught:
        predicting(plan)(*inputs, outputs=[WHERE, None])
    assert caught.value.name == "y"
