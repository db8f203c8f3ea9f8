"""The compiled form: what is written, and what a warm load makes of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from forms import OPTIONS, X, compiled, predict, written
from onnx import helper

from engine.backends import open_backend
from engine.errors import Cancelled, CompiledFormError, InputError
from engine.formats import open_source
from engine.options import CONSUMED
from engine.types import CancelToken, NodeState, Threads
from engine_cpu import compiled as compiled_form
from engine_cpu import compiled_session, load
from engine_cpu.options import OPTIONS as CPU_OPTIONS
from engine_cpu.options import RUN_OPTIONS
from engine_testing import models
from engine_testing.making import graph


def test_cold_and_warm_give_plain_s_bits_specs_and_placement(path: Path, folder: Path) -> None:
    source = open_source(path)
    plain = compiled(source)
    cold = compiled(source, replace(OPTIONS, save_to=folder))
    warm = compiled(replace(source, compiled=folder))
    assert (cold.inputs, cold.outputs) == (plain.inputs, plain.outputs)
    assert (warm.inputs, warm.outputs) == (plain.inputs, plain.outputs)
    assert plain.placement() == cold.placement() == warm.placement()
    for executable in (cold, warm):
        for rows in (4, 1):
            [expected], [y] = predict(plain, X[:rows]), predict(executable, X[:rows])
            np.testing.assert_array_equal(y, expected)


def test_a_warm_load_reads_nothing_of_the_original(path: Path, folder: Path) -> None:
    source = written(path, folder)
    [expected] = predict(compiled(replace(source, compiled=None)), X)
    path.unlink()
    gone = replace(source, data=None, path=path)
    np.testing.assert_array_equal(predict(compiled(gone), X)[0], expected)


def test_the_cold_executable_uses_what_it_wrote(path: Path, folder: Path) -> None:
    cold = compiled(open_source(path), replace(OPTIONS, save_to=folder))
    weights = folder / "weights.bin"
    report = cold.memory()
    matrix, rows = 4 * 64 * 256, 4 * 256  # the matrix, packed; and what is added to its rows
    assert matrix <= report.mapped_bytes <= weights.stat().st_size
    assert rows <= report.weights_bytes < rows + 64, "small weights stand in the graph"
    assert report.shared_bytes == 0
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(weights) in maps.read_text()
        assert report.mapped_bytes < weights.stat().st_size / 1.9, "the raw half is not mapped"


def in_order(executable: Any) -> list[str]:
    """Return a model's kernels in the order in which ONNX Runtime's profile has them."""
    predict(executable, X)
    events = json.loads(Path(executable.session.end_profiling()).read_text())
    return [event["name"] for event in events if event["name"].endswith("_kernel_time")]


@pytest.mark.parametrize("seed", range(8))
def test_branches_run_in_the_same_order_with_the_form_and_without(
    tmp_path: Path, folder: Path, seed: int
) -> None:
    random, nodes, unused = Random(seed), list[str](), {"x"}
    for number in range(8):
        first, second = (random.choice(["x", *map("v{}".format, range(number))]) for _ in "ab")
        nodes.append(f"[n{number}] v{number} = Add ({first}, {second})")
        unused = unused - {first, second} | {f"v{number}"}
    nodes.append(f"[end] y = Sum ({', '.join(sorted(unused))})")
    text = f"(float[4,64] x) => (float[4,64] y) {{ {' '.join(nodes)} }}"
    path = graph(tmp_path, "branches", text)
    options = replace(OPTIONS, options={"session.enable_profiling": str(tmp_path / "profile")})
    orders = [in_order(compiled(open_source(path), options))]
    orders.append(in_order(compiled(written(path, folder), options)))
    assert len(orders[0]) > 1
    assert orders[0] == orders[1]


def test_nothing_but_the_form_is_written(path: Path, folder: Path) -> None:
    before = set(os.listdir(path.parent))
    written(path, folder)
    assert set(os.listdir(folder)) == {"model.onnx", "weights.bin", "record.json"}
    assert set(os.listdir(path.parent)) == before


def flip_graph(folder: Path) -> None:
    data = bytearray((folder / "model.onnx").read_bytes())
    data[len(data) // 2] ^= 0x10
    (folder / "model.onnx").write_bytes(data)


def truncate_weights(folder: Path) -> None:
    os.truncate(folder / "weights.bin", (folder / "weights.bin").stat().st_size - 1)


def write_record(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "record.json").write_text(text) and None


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (flip_graph, "model.onnx is not what was written"),
        (truncate_weights, "weights.bin has .* bytes instead of"),
        (lambda folder: (folder / "weights.bin").unlink(), "weights.bin has 0 bytes"),
        (lambda folder: (folder / "model.onnx").unlink(), "cannot be read"),
        (lambda folder: (folder / "record.json").unlink(), "cannot be read"),
        (write_record("{"), "cannot be read"),
        (write_record("[]"), "record.json is damaged"),
        (write_record('{"layout": "8", "sha256": {}, "weights": {}, "states": [["", 9]]}'),
         "record.json is damaged"),
        (write_record('{"layout": "0", "sha256": "", "weights_bytes": 0, "states": []}'),
          "form': its layout is '0', but this version reads '8'"),
    ],
)  # fmt: skip
def test_a_damaged_form_is_refused_before_it_is_read(
    path: Path, folder: Path, damage: Callable[[Path], None], text: str
) -> None:
    source = written(path, folder)
    damage(folder)
    with pytest.raises(CompiledFormError, match=text) as caught:
        compiled(source)
    assert "\n" not in str(caught.value)


def test_a_form_of_another_model_is_refused(path: Path, folder: Path, tmp_path: Path) -> None:
    source = replace(open_source(models.affine(tmp_path)), compiled=folder)
    written(path, folder)
    with pytest.raises(CompiledFormError, match="it records 7 nodes, but the model has"):
        compiled(source)


def test_a_form_that_cannot_be_opened_again_costs_only_the_form(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CompiledFormError("damaged on its way")

    monkeypatch.setattr(compiled_session, "_reopened", refuse)
    source = open_source(path)
    executable = compiled(source, replace(OPTIONS, save_to=folder))
    assert executable.inputs == compiled(source).inputs
    assert list(folder.iterdir()) == []


def test_a_compile_that_is_cancelled_while_it_writes_leaves_nothing(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = CancelToken()
    finish = compiled_form.finish

    def cancel_then(*arguments: Any) -> Any:
        token.cancel()
        return finish(*arguments)

    monkeypatch.setattr(compiled_session, "finish", cancel_then)
    with pytest.raises(Cancelled):
        compiled(open_source(path), replace(OPTIONS, save_to=folder, cancel=token))
    assert list(folder.iterdir()) == []


def test_a_secret_model_leaves_nothing(path: Path, folder: Path) -> None:
    source = replace(open_source(path), data=path.read_bytes(), is_secret=True)
    executable = compiled(source, replace(OPTIONS, save_to=folder))
    assert os.listdir(folder) == []
    assert predict(executable, X)[0].shape == (4, 256)
    assert NodeState.FOLDED in {placed.state for placed in executable.placement()}
    assert os.listdir(folder) == []


def newer(folder: Path) -> tuple[Path, np.ndarray]:
    """y = 2x + 1, in an operator set newer than onnxruntime reads."""
    path = models.affine(folder)
    model = onnx.load(path)
    model.opset_import[0].version, model.ir_version = 28, 14
    onnx.save(model, path)
    return path, np.ones((2, 3), np.float32)


def worked_around(folder: Path) -> tuple[Path, np.ndarray]:
    """y = x / d in int32, whose kernel ends the process for some d."""
    text = "(int32[n, 3] x) => (int32[n, 3] y) { [div] y = Div (x, d) }"
    path = graph(folder, "prepared", text, {"d": np.array([2, -1, 5], np.int32)})
    return path, np.array([[7, 7, 7]], np.int32)


def unranked(folder: Path) -> tuple[Path, np.ndarray]:
    """y = transpose(x), x of no declared rank: onnxruntime's shape inference has seen nothing."""
    text = "(float[] x) => (float[] y) { [turn] y = Transpose <perm = [1, 0]> (x) }"
    return graph(folder, "prepared", text, valid=False), np.ones((2, 3), np.float32)


def carried(folder: Path) -> tuple[Path, np.ndarray]:
    """y = bfloat16(x), which onnxruntime's Python interface gives no arrays of."""
    text = "(float[n, 3] x) => (bfloat16[n, 3] y) { [cast] y = Cast <to = 16> (x) }"
    return graph(folder, "prepared", text, valid=False), np.ones((2, 3), np.float32)


@pytest.mark.parametrize("make", [newer, worked_around, unranked, carried])
def test_a_model_that_is_prepared_is_kept_as_it_was_prepared(
    tmp_path: Path, folder: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, x = make(tmp_path)
    source = open_source(path)
    [expected] = predict(compiled(source), x)
    cold = compiled(source, replace(OPTIONS, save_to=folder))
    assert "model.onnx" in os.listdir(folder)
    monkeypatch.setattr(load, "_prepared", None)  # nothing is prepared, or screened, again
    monkeypatch.setattr(load, "risk_of", None)
    warm = compiled(replace(source, compiled=folder))
    assert (cold.inputs, cold.outputs) == (warm.inputs, warm.outputs)
    assert cold.placement() == warm.placement()
    for executable in (cold, warm):
        [y] = predict(executable, x)
        assert y.dtype == expected.dtype
        np.testing.assert_array_equal(y, expected)


def test_what_is_worked_around_is_said_of_a_warm_model_too(tmp_path: Path, folder: Path) -> None:
    path, _ = worked_around(tmp_path)
    plain, warm = compiled(open_source(path)), compiled(written(path, folder))
    assert plain.placement()[0].reason == warm.placement()[0].reason
    assert "computed by other operators" in warm.placement()[0].reason


def test_a_warm_model_refuses_ranks_that_its_kernels_do_not_take(
    tmp_path: Path, folder: Path
) -> None:
    path, x = unranked(tmp_path)
    warm = compiled(written(path, folder))
    assert predict(warm, x)[0].shape == (3, 2)
    with pytest.raises(InputError, match="'x' of 1 axes"):
        predict(warm, x[0])


def test_a_constant_that_is_an_input_too_is_no_input_afterwards(path: Path, folder: Path) -> None:
    # As files before IR version 4 have it; onnxruntime would write the folded "two" as an input.
    model = onnx.load(path)
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    onnx.save(model, path)
    source = open_source(path)
    cold = compiled(source, replace(OPTIONS, save_to=folder))
    np.testing.assert_array_equal(predict(cold, X)[0], predict(compiled(source), X)[0])
    if os.listdir(folder):
        warm = compiled(replace(source, compiled=folder))
        np.testing.assert_array_equal(predict(warm, X)[0], predict(cold, X)[0])


def test_a_form_that_cannot_be_written_is_an_error_of_the_disk(path: Path, tmp_path: Path) -> None:
    """The core builds without a form then, and does not note the model as one without a form."""
    with pytest.raises(OSError, match="the compiled form could not be written"):
        compiled(open_source(path), replace(OPTIONS, save_to=tmp_path / "absent" / "form"))


def test_external_weights_and_weights_in_memory_are_kept_too(tmp_path: Path, folder: Path) -> None:
    source = open_source(models.external(tmp_path))  # y = x + ramp
    x = np.ones((2, 256), np.float32)
    expected = x + np.arange(256)
    warm = compiled(written(source.path or tmp_path, folder))
    np.testing.assert_array_equal(predict(warm, x)[0], expected)
    other = tmp_path / "other"
    other.mkdir()
    ramp = memoryview(np.arange(256, dtype=np.float32)).cast("B")
    data = (tmp_path / source.path.name).read_bytes() if source.path else b""
    held = replace(source, path=None, folder=None, data=data, files={"external.bin": ramp})
    cold = compiled(held, replace(OPTIONS, save_to=other))
    np.testing.assert_array_equal(predict(cold, x)[0], expected)
    assert "record.json" in os.listdir(other)


def key(**changes: object) -> dict[str, str]:
    backend = open_backend("cpu")
    return dict(backend.bind("engine_compiled_key")(replace(OPTIONS, **changes)))  # type: ignore[arg-type]


def test_the_key_names_what_the_graph_and_the_packing_depend_on() -> None:
    expected = {"engine_cpu", "layout", "onnxruntime", "processor", "options", "rewrites"}
    assert set(key()) == expected
    assert key(options={"graph_optimization": "basic"})["options"] != key()["options"]
    assert key(options={"session.disable_prepacking": "1"})["options"] != key()["options"]
    assert all(isinstance(text, str) for text in key().values())


@pytest.mark.parametrize(
    "change",
    [{"options": {"spin_us": "5"}}, {"options": {"graph_optimization": "all"}},
     {"threads": Threads(2)}, {"plan": "p"}],
)  # fmt: skip
def test_the_key_leaves_out_what_only_a_run_depends_on(change: dict[str, object]) -> None:
    assert key(**change) == key()


def test_an_option_changes_the_compiled_form_or_is_listed_as_one_of_a_run() -> None:
    in_key = {"graph_optimization", "denormal_as_zero", "workarounds", "batch_invariant"}
    in_key |= {"rewrites", "measure_rewrites", "session.*", "optimization.*", "mlas.*"}
    assert in_key.isdisjoint(RUN_OPTIONS)
    assert in_key.union(RUN_OPTIONS) == set(CPU_OPTIONS), "add new ones to RUN_OPTIONS, or here"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_form_written_with_other_threads_gives_the_same_bits(
    path: Path, folder: Path, threads: int
) -> None:
    source = written(path, folder)
    options = replace(OPTIONS, threads=Threads(threads))
    [expected] = predict(compiled(replace(source, compiled=None), options), X)
    np.testing.assert_array_equal(predict(compiled(source, options), X)[0], expected)


def test_no_option_that_the_core_reads_is_declared() -> None:
    assert not set(open_backend("cpu").info.options) & set(CONSUMED)


def convolutions(folder: Path) -> Path:
    """A Gemm whose weights have 20,020 bytes, and convolutions that are packed behind them."""
    random = np.random.default_rng(0)
    shapes = {"f": (64, 16, 5, 5), "g": (128, 64, 5, 5), "w": (1001, 5), "h": (16, 5, 3, 3)}
    constants: dict[str, np.ndarray] = {
        name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    starts = {"image": [1, 7, 11, 13], "from": [0, 0, 0, 0], "to": [1, 5, 11, 13]}
    constants |= {name: np.array(values, np.int64) for name, values in starts.items()}
    text = """(float[1, 5] x) => (float[1, 128, 11, 13] y) {
        m = Gemm <transB = 1> (x, w)
        i = Reshape (m, image)
        five = Slice (i, from, to)
        a = Conv <pads = [1, 1, 1, 1]> (five, h)
        b = Conv <pads = [2, 2, 2, 2]> (a, f)
        y = Conv <pads = [2, 2, 2, 2]> (b, g)
    }"""
    return graph(folder, "convolutions", text, constants)


@pytest.mark.parametrize("has_pool", [True, False])
def test_weights_are_mapped_where_kernels_can_read_them(
    tmp_path: Path, folder: Path, has_pool: bool
) -> None:
    """Those of convolutions end the process where they do not begin at a multiple of 64."""
    path = convolutions(tmp_path)
    pool = tmp_path / "pool"
    pool.mkdir()
    x = np.random.default_rng(1).standard_normal((1, 5)).astype(np.float32)
    source = open_source(path)
    options = replace(OPTIONS, save_to=folder, cache_folder=pool if has_pool else None)
    cold = compiled(source, options)
    places = [
        (entry.key, entry.value)
        for tensor in onnx.load(folder / "model.onnx", load_external_data=False).graph.initializer
        for entry in tensor.external_data
    ]
    offsets = [int(value) for key, value in places if key == "offset"] + [
        int(part.split(";")[0])
        for key, value in places
        if key.startswith("prepacked")
        for part in value.split("|")[1:]
    ]
    assert len(offsets) > 2
    assert all(offset % 64 == 0 for offset in offsets), places
    [expected] = predict(compiled(source), x)
    for executable in (cold, compiled(replace(source, compiled=folder))):
        np.testing.assert_array_equal(predict(executable, x)[0], expected)
