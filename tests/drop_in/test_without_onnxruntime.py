"""engine.onnxruntime without onnxruntime: on another backend, with classes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine_testing import models

WITHOUT = """
import importlib.abc, sys

class NotThere(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotThere())
import numpy as np
import engine.onnxruntime as ort
X = np.arange(6, dtype=np.float32).reshape(2, 3)
state = ort.capi.onnxruntime_pybind11_state

def refused(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")
"""

PROGRAMS = {
    "a model runs and says what it is": """
session = ort.InferenceSession(sys.argv[1], ort.SessionOptions())
for rows in (2, 2, 2, 1):
    x = np.full((rows, 3), rows, np.float32)
    assert (session.run(None, {"x": x})[0] == 2 * x + 1).all()
    assert (session.run(["y"], {"x": x.tolist()})[0] == 2 * x + 1).all()
[x] = session.get_inputs()
assert str(x) == "NodeArg(name='x', type='tensor(float)', shape=['batch', 3])"
assert session.get_outputs()[0].name == "y"
assert session.get_modelmeta().custom_metadata_map == {}
assert session.get_providers() == ["CPUExecutionProvider"]
assert ort.get_available_providers()[-1] == "CPUExecutionProvider"
""",
    "what does not fit is refused": """
session = ort.InferenceSession(sys.argv[1])
refused(state.InvalidArgument, "x", lambda: session.run(None, {"x": X.reshape(3, 2)}))
refused(state.InvalidArgument, "Invalid output name: z", lambda: session.run(["z"], {"x": X}))
refused(TypeError, "got 'y'; put it in []", lambda: session.run("y", {"x": X}))
for flat in (X.ravel(), X.ravel().tolist(), X[None]):
    rank = np.ndim(flat)
    text = f"Invalid rank for input: x Got: {rank} Expected: 2 Please fix"
    refused(state.InvalidArgument, text, lambda: session.run(None, {"x": flat}))
value = ort.OrtValue.ortvalue_from_numpy(X.ravel())
text = "Invalid rank for input: x Got: 1 Expected: 2"
refused(state.InvalidArgument, text, lambda: session.run_with_ort_values(None, {"x": value}))
binding = session.io_binding()
binding.bind_cpu_input("x", X.ravel())
binding.bind_output("y")
refused(state.InvalidArgument, text, lambda: session.run_with_iobinding(binding))
for value in (2.5, 2, True, np.float32(2.5), "2", b"2", ((1.0, 2.0, 3.0),)):
    refused(RuntimeError, f"Unable to handle object of type {type(value)}: input 'x'",
            lambda: session.run(None, {"x": value}))
for values in ([["a", "b", "c"]], [[1.0], [2.0, 3.0]], [[None, None, 1j]]):
    refused(RuntimeError, "Could not create tensor from given input list: input 'x': ",
            lambda: session.run(None, {"x": values}))
refused(ValueError, "Required inputs (['x']) are missing", lambda: session.run(None, {}))
refused(state.NoSuchFile, "NO_SUCHFILE", lambda: ort.InferenceSession("none.onnx"))
refused(state.InvalidProtobuf, "INVALID_PROTOBUF", lambda: ort.InferenceSession(b"text"))
refused(state.NotImplemented, "pip install onnxruntime",
        lambda: ort.InferenceSession(b"1234ORTM" + bytes(64)))
refused(AttributeError, "onnxruntime runs", lambda: session.get_tuning_results())
refused(AttributeError, "pip install onnxruntime", lambda: ort.SparseTensor)
""",
    "a forked child reads the parent's file or none": """
import os, pathlib
path, data = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[1]).read_bytes()
session = ort.InferenceSession(path)
assert (session.run(None, {"x": X})[0] == 2 * X + 1).all()

def in_child(work):
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def same():
    assert (session.run(None, {"x": X})[0] == 2 * X + 1).all()

def changed():
    text = "has changed since the session was made"
    refused(state.RuntimeException, text, lambda: session.run(None, {"x": X}))

in_child(same)
path.with_name("other").write_bytes(data)
path.with_name("other").replace(path)
in_child(changed)
same()
""",
    "options keep what they are given": """
options = ort.SessionOptions()
assert options.graph_optimization_level is ort.GraphOptimizationLevel.ORT_ENABLE_ALL
options.add_session_config_entry("session.x", "1")
assert options.get_session_config_entry("session.x") == "1"
refused(RuntimeError, "does not have configuration with key: session.y",
        lambda: options.get_session_config_entry("session.y"))
assert not options.has_providers()
options.add_provider("CPUExecutionProvider", {})
assert options.has_providers()
run = ort.RunOptions()
run.add_run_config_entry("a", "b")
assert run.get_run_config_entry("a") == "b"
assert ort.InferenceSession(sys.argv[1], options).get_session_options() is options
""",
    "values and bindings are the engine's": """
session = ort.InferenceSession(sys.argv[1])
value = ort.OrtValue.ortvalue_from_numpy(X)
assert (value.shape(), value.data_type(), value.device_name()) == ([2, 3], "tensor(float)", "cpu")
[y] = session.run_with_ort_values(None, {"x": value})
assert isinstance(y, ort.OrtValue) and (y.numpy() == 2 * X + 1).all()
binding = session.io_binding()
binding.bind_ortvalue_input("x", value)
binding.bind_output("y")
session.run_with_iobinding(binding)
assert (binding.copy_outputs_to_cpu()[0] == 2 * X + 1).all()
device = ort.OrtDevice.make("cuda", 1)
assert (device.device_type(), device.device_id()) == (1, 1)
import threading
done, told = threading.Event(), []
session.run_async(None, {"x": X}, lambda *given: (told.append(given), done.set()), "mine")
assert done.wait(30) and (told[0][0][0] == 2 * X + 1).all() and told[0][1:] == ("mine", "")
""",
    "it stands in onnxruntime's place": """
ort.install()
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
assert onnxruntime.InferenceSession is InferenceSession is ort.InferenceSession
assert InvalidArgument is state.InvalidArgument
import importlib.util
assert importlib.util.find_spec("onnxruntime") is not None
assert onnxruntime.__version__ and onnxruntime.get_device() and onnxruntime.get_build_info()
onnxruntime.set_default_logger_severity(3)
onnxruntime.disable_telemetry_events()
onnxruntime.preload_dlls()
""",
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_without_onnxruntime(
    what: str, null_backend: str, plugin_folder: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", WITHOUT + PROGRAMS[what], str(models.affine(tmp_path))]
    there = {**os.environ, "PYTHONPATH": str(plugin_folder), "ENGINE_TARGET": null_backend}
    done = subprocess.run(command, capture_output=True, text=True, env=there, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
