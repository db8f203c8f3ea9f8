"""OpenVINO's CPU plugin as a backend: `engine.load("model.onnx", target="openvino")`.

manifest.py: the device and the options. loading.py reads a model; nodes.py and operators.toml say
what OpenVINO computes exactly. running.py compiles and runs.
"""
# ruff: noqa: F401 - the hooks

from engine_openvino.loading import engine_load
from engine_openvino.manifest import (
    engine_backend,
    engine_compiled_key,
    engine_devices,
    engine_diagnose,
)
from engine_openvino.running import engine_compile, engine_predict, engine_predict_async
