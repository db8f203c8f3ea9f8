"""JAX as this backend uses it: imported without a trace, and as exact as the models' types."""

from __future__ import annotations

import hashlib
import os
from importlib.metadata import version
from pathlib import Path

from engine.types import CompileOptions, DType

_before = {**os.environ}
import jax  # noqa: E402

# JAX sets variables for its own C++ parts, which have read them by now; they are the process's.
for _name in os.environ.keys() - _before.keys():
    del os.environ[_name]

_NUMBERS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64"
DTYPES = frozenset(map(DType, _NUMBERS.split()))
"""Element types that run here: no text, no complex numbers, nothing below 8 bits, no float8."""


def compiler_options(options: CompileOptions) -> dict[str, bool | str]:
    """Return XLA's settings of one compile; XLA_FLAGS would be the whole process's.

    The pool of threads is the process's too: a model runs on all of it, or on one thread.
    YNNPACK is not used. jaxlib 0.10.2 and 0.11.0 hand it a sum together with the convolutions
    before it. Where the weights of one are a single repeated value, it reads memory that nothing
    has written: wrong results or NaN.
    """
    # Else float16 depends on what is fused.
    settings: dict[str, bool | str] = {"xla_allow_excess_precision": False}
    if jax.default_backend() == "cpu":
        settings["xla_cpu_enable_fast_math"] = False
        settings["xla_cpu_enable_fast_min_max"] = False  # NaN stays NaN
        settings["xla_cpu_experimental_ynn_fusion_type"] = ""
        settings["xla_cpu_multi_thread_eigen"] = options.threads.intra_op > 1
    return settings


def compiled_key(options: CompileOptions) -> dict[str, str]:
    """Return what XLA's code depends on beside the model."""
    cpus = Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    features = next((line for line in cpus.splitlines() if line.startswith("flags")), cpus)
    shapes = {name: (each.lowest, each.highest) for name, each in options.shapes.items()}
    return {
        **{name: version(name) for name in ("inference-engine-jax", "jax", "jaxlib", "onnx")},
        "device": jax.local_devices()[0].device_kind,
        "cpu": hashlib.sha256(features.encode()).hexdigest()[:16],
        "settings": str((compiler_options(options), options.devices)),
        "shapes": str(sorted(shapes.items())),
    }
