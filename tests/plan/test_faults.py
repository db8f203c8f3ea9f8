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

import fake_device
import numpy as np
import onnx
import pytest
from onnx import TensorProto
from plan_models import node, save, value

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
NO_TANH = {"first_context": {"unsupported_ops": "Tanh"}}
NO_TANH_ON_DEVICE = {"device_context": {"unsupported_ops": "Tanh"}}

# A second predict can be told to fail.
FAILS = """
failing = []

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    if failing:
        raise failing.pop()
    return context.run(inputs, outputs, deadline_s)
"""
CLOSES = """
closed = []
_open = FakeExecutable.__init__

def _noting(self, inner, options):
    _open(self, inner, options)
    self.close = lambda: closed.append(options)

FakeExecutable.__init__ = _noting
"""


def install_device(install: Install, extra: str = "") -> ModuleType:
    source = fake_device.SOURCE.replace("{name!r}", "'device'") + extra
    return install("device", extra=source, capabilities=fake_device.CAPABILITIES)


def plan_of(path: Path, target: list[str], config: Any = NO_TANH, **more: Any) -> Plan:
    context = engine.Context()
    context.target = target
    names = tuple(more.get("variable_weights", ()))
    targets = Targets(BuildOptions(context, config))
    return build_plan(open_source(path, variable_weights=names), targets, **more)


def chain(folder: Path, *ops: str) -> Path:
    names = ["x", *"abcdef"[: len(ops) - 1], "y"]
    return save(folder, [node(op, *pair) for op, *pair in zip(ops, names, names[1:])])


# ------------------------------------------------------------------------------ the caller's memory


@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("runs", [1, 3])
def test_an_output_buffer_that_is_an_input_too_is_filled_last(
    kind: str, runs: int, null_backend: str, install: Install, tmp_path: Path
) -> None:
    device = install_device(install)
    install("second")
    nodes = [node("Neg", "x", "y"), node("Tanh", "y", "t"), node("Add", "t x", "z")]
    path = save(tmp_path, nodes, outputs=[value("y"), value("z")])
    plan = plan_of(path, ["device", "second"], NO_TANH_ON_DEVICE)
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    lease = plan.pool.borrow()
    for _ in range(runs):
        both: Any = x.copy() if kind == "host" else device.allocate(x.copy(), WHERE)
        y, z = plan.predict(lease.context, [both], [both, None], None)
        assert y is both
        held = device.memory[both.pointer] if isinstance(both, DeviceBuffer) else both
        np.testing.assert_array_equal(held, -x)
        np.testing.assert_allclose(z, np.tanh(-x) + x, rtol=1e-6)


def test_an_input_that_is_an_output_too_is_read_before_its_memory_is_filled(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    install("first")
    install("second")
    nodes = [node("Neg", "x", "a"), node("Tanh", "a", "y")]
    plan = plan_of(save(tmp_path, nodes, outputs=[value("y"), value("x")]), ["first", "second"])
    lease = plan.pool.borrow()
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    for _ in range(4):
        both, copy = x.copy(), np.zeros(5, np.float32)
        plan.predict(lease.context, [both], [both, copy], None)
        np.testing.assert_allclose(both, np.tanh(-x), rtol=1e-6)
        np.testing.assert_array_equal(copy, x)


@needs_cpu
@pytest.mark.parametrize("runs", [1, 2, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_a_reset_context_has_let_go_of_the_callers_arrays(
    runs: int, fails: bool, null_backend: str, install: Install, tmp_path: Path
) -> None:
    first = install("first", extra=FAILS)
    plan = plan_of(chain(tmp_path, "Tanh", "Neg", "Tanh"), ["first", "cpu"])
    lease = plan.pool.borrow()

    def run() -> list[weakref.ref[np.ndarray]]:
        x, y = np.linspace(-1, 1, 7, dtype=np.float32), np.zeros(7, np.float32)
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


# --------------------------------------------------------------------------------- failing predicts


Steady = tuple[Plan, ModuleType, ModuleType, Callable[..., Any]]


@pytest.fixture
def steady(null_backend: str, install: Install, tmp_path: Path) -> Steady:
    """Neg, Tanh, Neg on two backends, run until its buffers stay; its modules and a predict."""
    first, second = install("first"), install("second", extra=FAILS)
    plan = plan_of(chain(tmp_path, "Neg", "Tanh", "Neg"), ["first", "second"])
    lease = plan.pool.borrow()

    def predict(x: Any = LINE, outputs: Any = None) -> Any:
        return plan.predict(lease.context, [x], outputs, None)

    for _ in range(3):
        predict()
    return plan, first, second, predict


LINE = np.linspace(-1, 1, 5, dtype=np.float32)


def test_a_failure_that_no_shape_explains_leaves_the_buffers_in_use(steady: Steady) -> None:
    plan, _, second, predict = steady
    second.failing.append(RuntimeError("once"))
    np.testing.assert_allclose(predict()[0], -np.tanh(-LINE), rtol=1e-6)
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
        predict()


def test_a_buffer_that_does_not_fit_does_not_run_the_model_again(steady: Steady) -> None:
    _, first, _, predict = steady
    first.calls.clear()
    overlapping = np.zeros(6, np.float32)
    with pytest.raises(InputError, match=r"output 'y': the result has shape \[5\]"):
        predict(overlapping[:5], [overlapping])
    assert len(first.calls) == 2


# ---------------------------------------------------------------------------------- failing builds


def test_what_was_compiled_is_closed_where_its_weights_have_no_memory(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    refusing = """
@hookimpl
def engine_buffer(device, dtype, shape, on_host):
    from engine.errors import BackendUnavailable

    raise BackendUnavailable("no memory left", "device")
"""
    device = install_device(install, CLOSES + refusing)
    path = save(tmp_path, [node("Add", "x w", "y")], constants={"w": np.float32([1.0])})
    with pytest.raises(BackendUnavailable, match="no memory left"):
        plan_of(path, ["device"], {}, variable_weights=("w",))
    assert len(device.closed) == 1


def test_a_build_asks_for_the_devices_once(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    asked = """
asked = []
_devices = null.engine_devices

@hookimpl
def engine_devices():
    asked.append(1)
    return _devices()
"""
    device = install_device(install, asked)
    plan = plan_of(save(tmp_path, [node("Neg", "x", "y")]), ["device"], {})
    assert plan.devices == (WHERE,)
    assert len(device.asked) == 1


def test_bounds_that_have_nothing_in_common_are_an_error_of_the_build(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    bounded = """
from dataclasses import replace as _replace

@hookimpl
def engine_compile(loaded, options):
    executable = loaded.compile(options)
    executable.inputs = tuple(_replace(s, bounds=({bounds},)) for s in executable.inputs)
    opened.append(executable)
    return executable
"""
    install("first", extra=bounded.format(bounds=(2, 4)), completed_by=("second",))
    install("second", extra=bounded.format(bounds=(5, 7)))
    path = save(tmp_path, [node("Neg", "x", "a"), node("Tanh", "x", "b"), node("Add", "a b", "y")])
    with pytest.raises(
        ModelError, match=r"input 'x': dim 0 has no size .*'second' \(5, 7\), 'first' \(2"
    ):
        plan_of(path, ["first"])


# -------------------------------------------------------------------------- what a backend can take


def test_a_model_in_a_format_that_a_backend_does_not_list_is_refused(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    first = install("first", formats=("plan",), suffixes={".plan": "plan"})
    install("second")
    path = save(tmp_path, [node("Neg", "x", "y")])
    with pytest.raises(ModelError, match=r"backend 'first' reads plan, .*onnx"):
        plan_of(path, ["first"])
    plan = plan_of(path, ["first", "second"])
    assert plan.backend.name == "second"
    assert "reads plan" in plan.why
    install("third")
    config = {"third_context": {"unsupported_ops": "Neg"}}
    plan = plan_of(path, ["third", "first", "second"], config)
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
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    device = install_device(install, lacking("share_workspace"))
    install("second")
    path = chain(tmp_path, "Neg", "Tanh", "Neg")
    plan_of(path, ["device", "second"], NO_TANH_ON_DEVICE).pool.borrow()
    assert [beside for _, beside in device.neighbours] == [None, None]


def test_a_device_that_reads_no_files_in_memory_gets_them_inlined(
    null_backend: str, install: Install, tmp_path: Path
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
    path = save(tmp_path, [node("Add", "x w", "y")], constants={"w": w})
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    plain = open_source(path)
    in_memory = replace(plain, files={"w.bin": (tmp_path / "w.bin").read_bytes()}, versions={})
    (tmp_path / "w.bin").unlink()
    device = install_device(install, noting + lacking("files_in_memory"))
    context = engine.Context()
    context.target = ["device"]
    plan = build_plan(in_memory, Targets(BuildOptions(context, {})))
    lease = plan.pool.borrow()
    np.testing.assert_array_equal(plan.predict(lease.context, [x], None, None)[0], x + w)
    assert [dict(source.files) for source in device.sources] == [{}]


def test_a_device_that_cannot_run_parts_gets_none(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    install_device(install, lacking("mixed_placement"))
    second = install("second")
    path = chain(tmp_path, "Neg", "Tanh", "Neg")
    with pytest.raises(ModelError, match="cannot run Tanh"):
        plan_of(path, ["device"], NO_TANH_ON_DEVICE)
    plan = plan_of(path, ["device", "second"], NO_TANH_ON_DEVICE)
    assert plan.backend.name == "second"
    assert len(second.loads) == 1


def test_a_plan_lacks_only_what_a_backend_that_runs_nodes_lacks(
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    install_device(install)  # announces no deadlines
    install("second")
    install("third")
    path = chain(tmp_path, "Neg", "Tanh", "Neg")
    config = {
        "device_context": {"unsupported_ops": "Neg,Tanh"},
        "second_context": {"unsupported_ops": "Tanh"},
    }
    with_target = plan_of(path, ["device", "second"], NO_TANH_ON_DEVICE)
    assert with_target.lacks("deadlines") == ("device", "")
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


# -------------------------------------------------------------------------------------- signatures


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
    null_backend: str, install: Install, tmp_path: Path
) -> None:
    install_device(install)
    install("second")
    text = TensorProto.STRING
    path = save(
        tmp_path,
        [node("Identity", "x", "y"), node("Neg", "n", "m")],
        inputs=[value("x", dtype=text), value("n")],
        outputs=[value("y", dtype=text), value("m")],
    )
    config = {"device_context": {"unsupported_ops": "Identity"}}
    plan = plan_of(path, ["device", "second"], config)
    inputs = [np.array(["a"], object), np.ones(1, np.float32)]
    signature = Signature(plan.executable.inputs, plan.executable.outputs)
    with pytest.raises(InputError, match=r"output 'y' is .*cannot be put on null:0"):
        fitting.check_buffers(signature, [WHERE, None], inputs)
    lease = plan.pool.borrow()
    with pytest.raises(InputError, match="'y' is text, which cannot be put on null:0") as caught:
        plan.predict(lease.context, inputs, [WHERE, None], None)
    assert caught.value.name == "y"
