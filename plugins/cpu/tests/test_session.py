"""Weights that are in memory, who keeps them, and loads that are cancelled."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import engine_cpu
from engine.backends import open_backend
from engine.errors import Cancelled
from engine.formats import open_source
from engine.formats.onnx import read_model
from engine.types import (
    CancelToken,
    Capability,
    CompileOptions,
    Device,
    Executable,
    ModelSource,
)
from engine_cpu import session
from engine_cpu.errors import explained
from engine_testing import models
from engine_testing.making import graph

X = np.ones((2, 256), np.float32)
GIVES_FILES = hasattr(onnxruntime.SessionOptions, session._GIVE_FILES)


def _source(folder: Path, ramp: np.ndarray, is_newer: bool = False) -> ModelSource:
    """y = x + ramp, the ramp in memory. is_newer: written for operators onnxruntime has not yet."""
    path = models.external(folder)
    if is_newer:
        model = onnx.load(path, load_external_data=False)
        model.opset_import[0].version, model.ir_version = 28, 14
        path.write_bytes(model.SerializeToString())
    source = replace(open_source(path), path=None, folder=None)
    return replace(source, files={"external.bin": memoryview(ramp).cast("B")})


def _compiled(source: ModelSource) -> Executable:
    backend = open_backend("cpu")
    options = CompileOptions(device=Device("cpu"))
    loaded = backend.load(source, options)
    executable: Executable = backend.compile(loaded, options)
    loaded.close()
    return executable


def _predict(executable: Executable) -> np.ndarray:
    [y] = open_backend("cpu").predict(executable.open_context(), [X], None, None)
    return np.asarray(y)


@pytest.mark.parametrize("given", ["by name", "in the model"])
def test_weights_in_memory_are_read_by_any_onnxruntime(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given == "in the model":
        monkeypatch.setattr(session, "_GIVE_FILES", "of_a_later_onnxruntime")
    elif not GIVES_FILES:
        pytest.skip(f"onnxruntime {onnxruntime.__version__} reads no files in memory")
    ramp = np.arange(256, dtype=np.float32)
    np.testing.assert_array_equal(_predict(_compiled(_source(tmp_path, ramp))), X + ramp)


def test_a_model_that_is_said_otherwise_finds_its_weights_in_memory(tmp_path: Path) -> None:
    ramp = np.arange(256, dtype=np.float32)
    executable = _compiled(_source(tmp_path, ramp, is_newer=True))
    np.testing.assert_array_equal(_predict(executable), X + ramp)


def test_a_compiled_model_does_not_keep_the_files_it_was_made_of(tmp_path: Path) -> None:
    ramp = np.arange(256, dtype=np.float32)
    kept = weakref.ref(ramp)
    executable = _compiled(_source(tmp_path, ramp))
    del ramp
    gc.collect()
    assert kept() is None
    np.testing.assert_array_equal(_predict(executable)[0], X[0] + np.arange(256))


def test_weights_may_be_in_memory_and_in_a_file(tmp_path: Path) -> None:
    b = np.arange(256, dtype=np.float32)
    path = models.external(tmp_path)  # y = x + ramp
    model = onnx.load(path, load_external_data=False)
    model.graph.node[0].output[0] = "sum"
    model.graph.node.append(onnx.helper.make_node("Add", ["sum", "b"], ["y"]))
    tensor = onnx.TensorProto(name="b", data_type=onnx.TensorProto.FLOAT, dims=[256])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="held")
    model.graph.initializer.append(tensor)
    data, files = model.SerializeToString(), {"held": memoryview(b).cast("B")}
    graph = read_model(memoryview(data), path, "model", files).graph
    source = ModelSource(format="onnx", data=data, folder=tmp_path, graph=graph, files=files)
    np.testing.assert_array_equal(_predict(_compiled(source)), X + b + b)


def test_a_load_is_given_up_soon_after_it_is_cancelled(tmp_path: Path) -> None:
    # Thousands of nodes: ONNX Runtime looks at the flag while it builds and optimises the graph.
    names = ["x", *(f"t{i}" for i in range(1, 8_000)), "y"]
    nodes = "\n".join(f"{after} = Add ({before}, one)" for before, after in pairwise(names))
    text = f"(float[2] x) => (float[2] y) {{ {nodes} }}"
    path = graph(tmp_path, "deep", text, {"one": np.float32(1)}, valid=False)
    source, backend = open_source(path), open_backend("cpu")
    begin, cpu_begin = time.monotonic(), time.process_time()
    backend.load(source, CompileOptions(device=Device("cpu"))).close()
    needed_s, whole_s = time.monotonic() - begin, time.process_time() - cpu_begin
    token = CancelToken()
    options = CompileOptions(device=Device("cpu"), cancel=token)
    timer = threading.Timer(needed_s / 20, token.cancel)
    cpu_begin = time.process_time()  # the clock runs on beside other programs
    timer.start()
    with pytest.raises(Cancelled):
        backend.load(source, options)
    assert time.process_time() - cpu_begin < whole_s * 0.8
    timer.join()


def test_a_runtime_that_cannot_stop_is_said_to_lack_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_cpu.engine_devices().found[0].lacks == {}
    monkeypatch.delattr(onnxruntime.SessionOptions, session.CANCELS_LOAD)
    [(name, reason)] = engine_cpu.engine_devices().found[0].lacks.items()
    assert name == Capability.CANCEL_COMPILE
    assert onnxruntime.__version__ in reason


def test_messages_are_without_places_in_onnxruntimes_source() -> None:
    what = "index < 3 was false. Got (4) [x]"
    for function in (
        "void onnxruntime::Foo::Bar(int, const std::vector<std::pair<int, bool> >&) const",
        "T onnxruntime::get(const Tensor*) [with T = InlinedVector<long unsigned int, 6>]",
        "onnxruntime::Run(Graph&, bool)::<lambda(const Node&)>",
        "U std::unique_ptr<_Tp, _Dp>::operator*() const [with _Tp = onnxruntime::Graph; U = _Tp&]",
        "bool onnxruntime::{anonymous}::f(std::function<void(int)>)",
    ):
        text = f"Exception: /onnxruntime_src/onnxruntime/core/graph/graph.cc:12 {function} {what}"
        assert explained(text) == f"Exception: {what}"
    assert explained("Load model from a.cc failed: x(y)") == "Load model from a.cc failed: x(y)"
    long = "a.cc:1 " + "x<(" * 50_000
    assert len(explained(long)) < len(long)
