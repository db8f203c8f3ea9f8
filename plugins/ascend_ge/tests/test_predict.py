"""Predict: shapes of every kind, .om files, precision, threads, deadlines. Emulated."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine.errors import DeadlineExceeded, InputError, ModelError
from engine.types import Device, DType
from engine_ascend_ge import runtime
from engine_ascend_ge.om import Om
from engine_testing import models

Build = Callable[..., Any]
Run = Callable[..., Any]
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_plain_execute_is_never_needed_where_sizes_can_be_known(
    machine: Any, build: Build, path: Path, is_affine: Run
) -> None:
    is_affine(build(path).open_context(), X)
    assert machine.calls["mdl.execute"] == 0, "it holds the GIL"
    assert machine.calls["mdl.execute_async"] == 1


def test_a_size_that_only_the_data_decides_is_exact(
    machine: Any, build: Build, predict: Run, tmp_path: Path
) -> None:
    context = build(models.nonzero(tmp_path)).open_context()
    predict(context, np.ones(3, np.float32))
    before = machine.live()["Memory"]
    for values, expected in (([0, 1, 2], [[1, 2]]), ([0, 0], [[]]), ([5], [[0]])):
        [y] = predict(context, np.array(values, np.float32))
        np.testing.assert_array_equal(y, np.array(expected, np.int64))
    assert machine.live()["Memory"] == before, "what CANN allocated for a result was not freed"


@pytest.mark.parametrize("is_om", [False, True])
def test_ranges_bound_the_inputs(
    build: Build, make_om: Any, path: Path, sized: Any, floats: Any, is_affine: Run, is_om: bool
) -> None:
    ranges = sized(x=((2, 8), 3))
    om = build(make_om(path, input_shape="x:2~8,3")) if is_om else build(path, **ranges)
    assert om.inputs[0].bounds == ((2, 8), None)
    context = om.open_context()
    is_affine(context, floats(8, 3))
    with pytest.raises(ModelError, match="out of shape range"):
        is_affine(context, floats(9, 3))
    is_affine(context, floats(2, 3))


def test_a_fixed_size_is_the_executables(build: Build, path: Path, sized: Any) -> None:
    executable = build(path, **sized(x=(5, 3)))
    assert executable.inputs[0].shape == executable.outputs[0].shape == (5, 3)


@pytest.mark.parametrize("is_om", [False, True])
def test_gears_run_each_at_its_size(
    build: Build, make_om: Any, path: Path, geared: Any, floats: Any, is_affine: Run, is_om: bool
) -> None:
    if is_om:
        executable = build(make_om(path, input_shape="x:-1,3", dynamic_dims="1;4"))
        assert executable.inputs[0].shape == (None, 3)
    else:
        executable = build(path, **geared({"x": (1, 3)}, {"x": (4, 3)}))
    assert executable.inputs[0].bounds == ((1, 4), None)
    context = executable.open_context()
    is_affine(context, floats(4, 3))
    message = r"dim 0 of input 'x': got \[3\], but the model was compiled for the gears \[1\], \[4"
    with pytest.raises(InputError, match=message) as caught:
        is_affine(context, floats(3, 3))
    assert caught.value.name == "x"
    is_affine(context, floats(1, 3))


def test_an_input_that_nothing_reads_may_be_missing_in_the_om(
    build: Build, predict: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(path)
    model.graph.input.insert(0, helper.make_tensor_value_info("idle", TensorProto.FLOAT, ["n"]))
    onnx.save(model, path)
    monkeypatch.setenv("EMULATED_ATC", '{"drop_unused": true}')
    executable = build(path)
    assert [spec.name for spec in executable.inputs] == ["idle", "x"]
    [y] = predict(executable.open_context(), np.zeros(9, np.float32), X)
    np.testing.assert_array_equal(y, 2 * X + 1)


def test_an_om_file_is_read_and_run(
    build: Build, predict: Run, make_om: Any, tmp_path: Path
) -> None:
    executable = build(make_om(models.several(tmp_path)))
    assert " ".join(map(str, executable.inputs)) == "float32[2, 3] float32[2, 3] float32[3]"
    assert [spec.name for spec in executable.outputs] == ["y", "b", "x"]
    z, a, m = X, X + 1, np.array([1, 2, 3], np.float32)
    y, b, x = predict(executable.open_context(), z, a, m)
    np.testing.assert_array_equal(y, z - a)
    np.testing.assert_array_equal(b, a * m)
    np.testing.assert_array_equal(x, z + m)


@pytest.mark.parametrize(
    ("flags", "change", "message"),
    [
        ({}, lambda om: b"PK\x03\x04 a zip", r"expected it to begin with b'IMOD', got"),
        ({}, lambda om: b"IMOD" + bytes(500),
         "read the sizes of the compiled model: ACL_ERROR_GE_EXEC_MODEL_DA"),
        ({}, lambda om: om[:-100], r"affine\.om"),
        ({"soc_version": "Ascend310P3"}, lambda om: om, "Ascend310P3"),
    ],
    ids=["foreign", "empty", "cut off", "of another soc"],
)  # fmt: skip
def test_an_om_file_that_the_device_cannot_run_is_refused(
    machine: Any, build: Build, make_om: Any, path: Path, flags: Any, change: Any, message: str
) -> None:
    om = make_om(path, input_shape="x:2,3", **flags)
    om.write_bytes(change(om.read_bytes()))
    with pytest.raises(ModelError, match=message):
        build(om)
    assert machine.live() == {}


@pytest.mark.parametrize("data", [b"", Path("/nonexistent/m.om")])
def test_an_om_file_that_cannot_be_read_is_refused(data: bytes | Path) -> None:
    with pytest.raises(ModelError, match=r"m\.om: .*\.om file"):
        Om(data, "m.om")


def test_float32_stays_float32_unless_float16_is_asked_for(
    build: Build, predict: Run, is_affine: Run, path: Path
) -> None:
    x = np.full((1, 3), 1 + 2**-20, np.float32)  # float16 has 11 bits
    is_affine(build(path).open_context(), x)
    [half] = predict(build(path, precision="enforce_fp16").open_context(), x)
    np.testing.assert_array_equal(half, np.full((1, 3), 3, np.float32))


def test_an_output_type_that_was_asked_for_is_the_executables(
    build: Build, predict: Run, path: Path
) -> None:
    executable = build(path, set={"output_type": "FP16"})
    assert str(executable.outputs[0]) == "float16[batch, 3]"
    [y] = predict(executable.open_context(), X)
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, (2 * X + 1).astype(np.float16))


def test_weights_are_on_the_device_once(
    machine: Any, build: Build, predict: Run, make_om: Any, tmp_path: Path
) -> None:
    executable = build(make_om(models.heavy(tmp_path), input_shape="x:1,1024"))
    contexts = [executable.open_context() for _ in range(4)]
    x = np.arange(1024, dtype=np.float32)[None]
    for context in contexts:
        np.testing.assert_array_equal(predict(context, x)[0], x)
    sizes = [allocation.data.nbytes for allocation in machine.memory.live()]
    assert len([size for size in sizes if size >= 4 * 1024 * 1024]) == 1
    memory = executable.memory()
    assert memory.weights_bytes == 4 * 1024 * 1024
    assert memory.weights_bytes + memory.workspace_bytes == machine.memory.used_bytes(0)
    for context in contexts:
        context.close()
    assert executable.memory().workspace_bytes == 0


def test_threads_run_at_the_same_time(machine: Any, affine: Build, is_affine: Run) -> None:
    executable = affine()
    contexts = [executable.open_context() for _ in range(4)]
    machine.slow(1.5)
    start = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda context: is_affine(context, X), contexts))
    assert time.monotonic() - start < 5, "four runs of 1.5 s were one after another"


def test_two_devices_run_two_executables(machine: Any, affine: Build, is_affine: Run) -> None:
    contexts = [affine(device=Device("ascend", n)).open_context() for n in (0, 1)]
    for context in (*contexts, *contexts):
        is_affine(context, X)
    assert machine.memory.used_bytes(0) == machine.memory.used_bytes(1) > 0


def test_what_is_left_open_is_closed_when_acl_is_finalized(machine: Any, affine: Build) -> None:
    executable = affine()
    context = executable.open_context()
    runtime.stop()
    assert machine.live() == {}
    assert machine.is_finalized
    before = sum(machine.calls.values())
    context.close()
    executable.close()
    assert sum(machine.calls.values()) == before, "ACL was called after its end"


def test_a_deadline_leaves_the_context_usable_and_the_buffer_alone(
    machine: Any, affine: Build, predict: Run, is_affine: Run
) -> None:
    context = affine().open_context()
    buffer = np.full((2, 3), -1, np.float32)
    machine.slow(3)
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        predict(context, X, outputs=[buffer], deadline_s=start + 0.05)
    assert time.monotonic() - start < 2.8
    np.testing.assert_array_equal(buffer, np.full((2, 3), -1, np.float32))
    machine.slow(0)
    is_affine(context, X + 5)
    np.testing.assert_array_equal(buffer, np.full((2, 3), -1, np.float32))


def test_a_context_may_be_closed_while_a_run_that_was_given_up_still_runs(
    machine: Any, affine: Build, predict: Run
) -> None:
    context = affine().open_context()
    machine.slow(0.3)
    with pytest.raises(DeadlineExceeded):
        predict(context, X, deadline_s=time.monotonic() + 0.05)
    context.close()


def test_a_passed_deadline_starts_nothing(machine: Any, affine: Build, predict: Run) -> None:
    with pytest.raises(DeadlineExceeded):
        predict(affine().open_context(), X, deadline_s=time.monotonic() - 1)
    assert machine.calls["mdl.execute_async"] == 0


def test_text_is_refused_by_name(build: Build, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"input 'x' is string\[2, 3\], which Ascend devices do"):
        build(models.moved(tmp_path, DType.STRING))
