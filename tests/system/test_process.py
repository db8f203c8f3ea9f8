"""Modules that a process imports to load and predict once: bench/process.py has the time."""

from __future__ import annotations

from own_python import python

from engine_testing import models

PROGRAM = """
import sys
import numpy as np
import onnxruntime
before = {*sys.modules}
import engine
with engine.load(sys.argv[1], target="cpu") as model:
    [y] = model(np.zeros((2, 3), np.float32)).values()
assert (y == 1).all()
print(*({*sys.modules} - before))
"""

# Each took more than a hundredth of the process's time, or stands for many that did together.
FOREIGN = {
    "email", "hashlib", "importlib.metadata", "importlib_metadata", "json", "logging", "ml_dtypes",
    "numpy.typing", "onnx",
}  # fmt: skip
OWN = {
    "engine.backends.advice", "engine.backends.device_types", "engine.backends.isolation.probe",
    "engine.config.reader", "engine.config.schema", "engine.config.sections",
    "engine.config.shapes", "engine.converter",
    "engine.model.update", "engine.formats.encryption",
    "engine.formats.format", "engine.formats.recognised", "engine_mindir",
    "engine.formats.onnx.folding", "engine.formats.onnx.growth", "engine.formats.onnx.order",
    "engine.formats.onnx.small_values", "engine.formats.onnx.sparse",
    "engine.formats.onnx.writer", "engine.host.deadlines", "engine.plan.mixed.fallback",
    "engine.host.fair_semaphore", "engine.plan.held", "engine.plan.transfer", "engine.reference",
    "engine.tensor.dlpack", "engine.tensor.placing", "engine.runtime.resizing",
    "engine.runtime.values", "engine.runtime.wrapping", "engine_testing", "engine.weights.lowered",
    "engine_cpu.bound",
    "engine_cpu.compiled", "engine_cpu.compiled_session", "engine_cpu.deadline",
    "engine_cpu.entries", "engine_cpu.errors", "engine_cpu.known_issues", "engine_cpu.mapped",
    "engine_cpu.node_rules", "engine_cpu.node_states", "engine_cpu.nodes", "engine_cpu.prepare",
    "engine_cpu.prescreen", "engine_cpu.trees", "engine_cpu.values",
}  # fmt: skip


def test_a_first_predict_imports_nothing_that_it_does_not_use(tmp_path):
    path = models.affine(tmp_path)
    done = python("-c", PROGRAM, path, check=True)
    imported = set(done.stdout.split())
    assert {"engine.model", "engine_cpu.session"} <= imported
    assert not imported & (FOREIGN | OWN)
