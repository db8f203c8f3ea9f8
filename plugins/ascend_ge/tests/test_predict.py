"""Predict: shapes of every kind, precision, contexts and threads, deadlines. Emulated."""

from __future__ import annotations

import itertools
import threading
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
from engine.types import Device, DType, ShapeRange
from engine_ascend_ge import runtime
from engine_ascend_ge.om import Om
from engine_testing import models

Build = Callable[..., Any]
Run = Callable[..., Any]


def rows(count: int) -> np.ndarray[Any, Any]:
    return np.arange(3 * count, dtype=np.float32).reshape(count, 3)


# --------------------------------------------------------------------------------------- shapes


def test_open_sizes_take_what_comes(build: Build, predict: Run, tmp_path: Path) -> None:
    context = build(models.affine(tmp_path)).open_context()
    for count in (2, 7, 1, 0, 7):
        [y] = predict(context, rows(count))
        np.testing.assert_array_equal(y, 2 * rows(count) + 1)


def test_plain_execute_is_never_needed_where_sizes_can_be_known(
    machine: Any, build: Build, predict: Run, tmp_path: Path
) -> None:
    context = build(models.affine(tmp_path)).open_context()
    predict(context, rows(4))
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


def test_ranges_are_compiled_and_bound_the_inputs(
    build: Build, predict: Run, tmp_path: Path
) -> None:
    ranges = {"x": ShapeRange((2, 3), (4, 3), (8, 3))}
    executable = build(models.affine(tmp_path), shapes=ranges)
    assert executable.inputs[0].bounds == ((2, 8), None)
    context = executable.open_context()
    [y] = predict(context, rows(8))
    np.testing.assert_array_equal(y, 2 * rows(8) + 1)
    with pytest.raises(ModelError, match="out of shape range"):
        predict(context, rows(9))
    [y] = predict(context, rows(2))
    np.testing.assert_array_equal(y, 2 * rows(2) + 1)


def test_a_fixed_size_is_the_executables(
    build: Build, predict: Run, tmp_path: Path, sized: Any
) -> None:
    executable = build(models.affine(tmp_path), **sized(x=(5, 3)))
    assert executable.inputs[0].shape == (5, 3)
    assert executable.outputs[0].shape == (5, 3)
    [y] = predict(executable.open_context(), rows(5))
    np.testing.assert_array_equal(y, 2 * rows(5) + 1)


def test_gears_run_each_at_its_size(
    machine: Any, build: Build, predict: Run, tmp_path: Path, geared: Any
) -> None:
    gears = geared({"x": (1, 3)}, {"x": (4, 3)}, {"x": (16, 3)})
    executable = build(models.affine(tmp_path), **gears)
    assert executable.inputs[0].bounds == ((1, 16), None)
    context = executable.open_context()
    for count in (4, 1, 16, 4, 4):
        [y] = predict(context, rows(count))
        np.testing.assert_array_equal(y, 2 * rows(count) + 1)
    assert machine.calls["mdl.set_input_dynamic_dims"] == 4, "once for each change"


def test_gears_of_two_inputs_go_together(
    build: Build, predict: Run, tmp_path: Path, geared: Any
) -> None:
    executable = build(
        models.shared_dims(tmp_path),
        **geared({"right": (3, 2), "left": (1, 3)}, {"right": (5, 2), "left": (4, 5)}),
    )
    context = executable.open_context()
    for n, common in ((1, 3), (4, 5)):
        left, right = np.ones((n, common), np.float32), np.ones((common, 2), np.float32)
        [y] = predict(context, left, right)
        np.testing.assert_array_equal(y, np.full((n, 2), common, np.float32))
    with pytest.raises(InputError, match="compiled for the gears"):
        predict(context, np.ones((1, 5), np.float32), np.ones((5, 2), np.float32))


def test_a_size_that_is_no_gear_is_named_with_the_gears(
    build: Build, predict: Run, tmp_path: Path, geared: Any
) -> None:
    context = build(models.affine(tmp_path), **geared({"x": (1, 3)}, {"x": (4, 3)})).open_context()
    message = r"dim 0 of input 'x': got \[3\], but the model was compiled for the gears \[1\], \[4"
    with pytest.raises(InputError, match=message) as caught:
        predict(context, rows(3))
    assert caught.value.name == "x"
    [y] = predict(context, rows(4))
    np.testing.assert_array_equal(y, 2 * rows(4) + 1)


def test_an_input_that_nothing_reads_may_be_missing_in_the_om(
    build: Build, predict: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(models.affine(tmp_path))
    model.graph.input.insert(0, helper.make_tensor_value_info("idle", TensorProto.FLOAT, ["n"]))
    onnx.save(model, tmp_path / "idle.onnx")
    monkeypatch.setenv("EMULATED_ATC", '{"drop_unused": true}')
    executable = build(tmp_path / "idle.onnx")
    assert [spec.name for spec in executable.inputs] == ["idle", "x"]
    [y] = predict(executable.open_context(), np.zeros(9, np.float32), rows(2))
    np.testing.assert_array_equal(y, 2 * rows(2) + 1)


# ------------------------------------------------------------------------------------- .om files


def test_an_om_file_is_read_and_run(
    build: Build, predict: Run, make_om: Any, tmp_path: Path
) -> None:
    executable = build(make_om(models.several(tmp_path)))
    assert [str(spec) for spec in executable.inputs] == [
        "float32[2, 3]", "float32[2, 3]", "float32[3]",
    ]  # fmt: skip
    assert [spec.name for spec in executable.outputs] == ["y", "b", "x"]
    z, a, m = rows(2), rows(2) + 1, np.array([1, 2, 3], np.float32)
    y, b, x = predict(executable.open_context(), z, a, m)
    np.testing.assert_array_equal(y, z - a)
    np.testing.assert_array_equal(b, a * m)
    np.testing.assert_array_equal(x, z + m)


def test_an_om_file_with_gears_knows_them(
    build: Build, predict: Run, make_om: Any, tmp_path: Path
) -> None:
    om = make_om(models.affine(tmp_path), input_shape="x:-1,3", dynamic_dims="2;8")
    executable = build(om)
    assert executable.inputs[0].shape == (None, 3)
    assert executable.inputs[0].bounds == ((2, 8), None)
    context = executable.open_context()
    for count in (8, 2):
        [y] = predict(context, rows(count))
        np.testing.assert_array_equal(y, 2 * rows(count) + 1)
    with pytest.raises(InputError, match="gears"):
        predict(context, rows(5))


def test_an_om_file_with_ranges_knows_them(
    build: Build, predict: Run, make_om: Any, tmp_path: Path
) -> None:
    executable = build(make_om(models.affine(tmp_path), input_shape="x:2~8,3"))
    assert executable.inputs[0].bounds == ((2, 8), None)
    [y] = predict(executable.open_context(), rows(3))
    np.testing.assert_array_equal(y, 2 * rows(3) + 1)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"PK\x03\x04 a zip", "expected it to begin with b'IMOD', got"),
        (b"IMOD" + bytes(500), r"read the sizes of the compiled model: ACL_ERROR_GE_EXEC_MODEL_DA"),
    ],
)
def test_a_foreign_om_file_is_refused(
    machine: Any, build: Build, tmp_path: Path, contents: bytes, message: str
) -> None:
    path = tmp_path / "foreign.om"
    path.write_bytes(contents)
    with pytest.raises(ModelError, match=message):
        build(path)
    assert machine.live() == {}


@pytest.mark.parametrize("data", [b"", Path("/nonexistent/m.om")])
def test_an_om_file_that_cannot_be_read_is_refused(data: bytes | Path) -> None:
    with pytest.raises(ModelError, match=r"m\.om: .*\.om file"):
        Om(data, "m.om")


def test_an_om_file_that_is_cut_off_is_refused(
    machine: Any, build: Build, make_om: Any, tmp_path: Path
) -> None:
    path = make_om(models.heavy(tmp_path), input_shape="x:1,1024")
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"heavy\.om"):
        build(path)
    assert machine.live() == {}


def test_an_om_file_for_another_soc_is_refused_by_name(
    machine: Any, build: Build, make_om: Any, tmp_path: Path
) -> None:
    path = make_om(models.several(tmp_path), soc_version="Ascend310P3")
    with pytest.raises(ModelError, match="Ascend310P3"):
        build(path)
    assert machine.live() == {}


# ------------------------------------------------------------------------------------- precision


def test_float32_stays_float32_unless_float16_is_asked_for(
    build: Build, predict: Run, tmp_path: Path
) -> None:
    path = models.affine(tmp_path)
    x = np.full((1, 3), 1 + 2**-20, np.float32)  # float16 has 11 bits
    [exact] = predict(build(path).open_context(), x)
    [half] = predict(build(path, precision="enforce_fp16").open_context(), x)
    np.testing.assert_array_equal(exact, 2 * x + 1)
    np.testing.assert_array_equal(half, np.full((1, 3), 3, np.float32))


def test_an_output_type_that_was_asked_for_is_the_executables(
    build: Build, predict: Run, tmp_path: Path
) -> None:
    executable = build(models.affine(tmp_path), set={"output_type": "FP16"})
    assert str(executable.outputs[0]) == "float16[batch, 3]"
    [y] = predict(executable.open_context(), rows(2))
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, (2 * rows(2) + 1).astype(np.float16))


# ---------------------------------------------------------------------------- contexts, threads


def test_weights_are_on_the_device_once(
    machine: Any, build: Build, predict: Run, make_om: Any, tmp_path: Path
) -> None:
    executable = build(make_om(models.heavy(tmp_path), input_shape="x:1,1024"))
    contexts = [executable.open_context() for _ in range(4)]
    x = np.arange(1024, dtype=np.float32)[None]
    for context in contexts:
        np.testing.assert_array_equal(predict(context, x)[0], x)
    big = [
        allocation
        for allocation in machine.memory.live()
        if allocation.data.nbytes >= 4 * 1024 * 1024
    ]
    assert len(big) == 1
    memory = executable.memory()
    assert memory.weights_bytes == 4 * 1024 * 1024
    assert memory.weights_bytes + memory.workspace_bytes == machine.memory.used_bytes(0)
    for context in contexts:
        context.close()
    assert executable.memory().workspace_bytes == 0


def test_threads_run_at_the_same_time(
    machine: Any, build: Build, predict: Run, make_om: Any, tmp_path: Path
) -> None:
    executable = build(make_om(models.affine(tmp_path), input_shape="x:2,3"))
    contexts = [executable.open_context() for _ in range(4)]
    machine.slow(1.5)
    start = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda context: predict(context, rows(2))[0], contexts))
    assert time.monotonic() - start < 5, "four runs of 1.5 s were one after another"
    for y in results:
        np.testing.assert_array_equal(y, 2 * rows(2) + 1)


def test_a_context_moves_between_threads(
    build: Build, predict: Run, make_om: Any, tmp_path: Path
) -> None:
    one, other = (
        build(make_om(models.affine(tmp_path), input_shape="x:2,3")).open_context()
        for _ in range(2)
    )
    turn = threading.Lock()
    order = itertools.count()

    def work(number: int) -> None:
        for _ in range(10):
            with turn:
                context = (one, other)[next(order) % 2]
                [y] = predict(context, rows(2) + number)
            np.testing.assert_array_equal(y, 2 * (rows(2) + number) + 1)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))


def test_two_devices_run_two_executables(
    machine: Any, build: Build, predict: Run, make_om: Any, tmp_path: Path
) -> None:
    om = make_om(models.affine(tmp_path), input_shape="x:2,3")
    contexts = [build(om, device=Device("ascend", n)).open_context() for n in (0, 1)]
    for context in (*contexts, *contexts):
        np.testing.assert_array_equal(predict(context, rows(2))[0], 2 * rows(2) + 1)
    assert machine.memory.used_bytes(0) == machine.memory.used_bytes(1) > 0


def test_closing_waits_for_nothing_and_twice_does_nothing(
    machine: Any, build: Build, make_om: Any, tmp_path: Path
) -> None:
    executable = build(make_om(models.affine(tmp_path), input_shape="x:2,3"))
    first, second = executable.open_context(), executable.open_context()
    first.close()
    first.close()
    executable.close()
    executable.close()
    second.close()
    assert machine.live() == {}


def test_what_is_left_open_is_closed_when_acl_is_finalized(
    machine: Any, build: Build, make_om: Any, tmp_path: Path
) -> None:
    executable = build(make_om(models.affine(tmp_path), input_shape="x:2,3"))
    context = executable.open_context()
    runtime.stop()
    assert machine.live() == {}
    assert machine.is_finalized
    before = sum(machine.calls.values())
    context.close()
    executable.close()
    assert sum(machine.calls.values()) == before, "ACL was called after its end"


# ------------------------------------------------------------------------------------- deadlines


def test_a_deadline_leaves_the_context_usable_and_the_buffer_alone(
    machine: Any, build: Build, predict: Run, make_om: Any, tmp_path: Path
) -> None:
    context = build(make_om(models.affine(tmp_path), input_shape="x:2,3")).open_context()
    buffer = np.full((2, 3), -1, np.float32)
    machine.slow(3)
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        predict(context, rows(2), outputs=[buffer], deadline_s=start + 0.1)
    assert time.monotonic() - start < 2.8
    np.testing.assert_array_equal(buffer, np.full((2, 3), -1, np.float32))
    machine.slow(0)
    [y] = predict(context, rows(2) + 5)
    np.testing.assert_array_equal(y, 2 * (rows(2) + 5) + 1)
    np.testing.assert_array_equal(buffer, np.full((2, 3), -1, np.float32))


def test_a_context_may_be_closed_while_a_run_that_was_given_up_still_runs(
    machine: Any, build: Build, predict: Run, make_om: Any, tmp_path: Path
) -> None:
    context = build(make_om(models.affine(tmp_path), input_shape="x:2,3")).open_context()
    machine.slow(0.3)
    with pytest.raises(DeadlineExceeded):
        predict(context, rows(2), deadline_s=time.monotonic() + 0.05)
    context.close()


def test_a_passed_deadline_starts_nothing(
    machine: Any, build: Build, predict: Run, make_om: Any, tmp_path: Path
) -> None:
    context = build(make_om(models.affine(tmp_path), input_shape="x:2,3")).open_context()
    with pytest.raises(DeadlineExceeded):
        predict(context, rows(2), deadline_s=time.monotonic() - 1)
    assert machine.calls["mdl.execute_async"] == 0


# --------------------------------------------------------------------------------- what is refused


def test_text_is_refused_by_name(build: Build, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"input 'x' is string\[2, 3\], which Ascend devices do"):
        build(models.moved(tmp_path, DType.STRING))
