"""TensorRT's real ONNX parser and builder, on the processor, against the emulated ones.

TensorRT for RTX parses and builds without a GPU. With ENGINE_TENSORRT_RTX naming a folder of
unpacked `tensorrt_rtx_cu13_libs` and `tensorrt_rtx_cu13_bindings` wheels, this plugin's own load
and compile run on them, as far as there is no device: to the finished plan, which the runtime
then refuses for want of a driver.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODELS = (
    "affine", "scalar", "empty", "several", "shared_dims", "negated", "mixed_dtypes", "identity",
    "twins", "constant", "no_batch", "foldable", "branch", "external", "pairs", "mismatched",
    "unknown_operator", "heavy",
    *(f"doubled:{dtype}" for dtype in ("float16", "float64", "int32", "int64", "uint8", "int8")),
    *(f"moved:{dtype}" for dtype in ("bool", "uint8", "int8", "int16", "bfloat16", "string")),
)  # fmt: skip


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    """What each model came to: {"real" or "emulated": {model: answer}}."""
    folder = os.environ.get("ENGINE_TENSORRT_RTX")
    if not folder:
        pytest.skip("ENGINE_TENSORRT_RTX names no folder with unpacked tensorrt_rtx wheels")
    found = {}
    for kind in ("real", "emulated"):
        path = os.pathsep.join([os.environ["PYTHONPATH"], folder])
        child = subprocess.run(
            [sys.executable, __file__, kind, *MODELS],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert child.returncode == 0, child.stderr[-2000:]
        found[kind] = json.loads(child.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", MODELS)
def test_real_and_emulated_parser_and_builder_agree(
    name: str, answers: dict[str, dict[str, Any]]
) -> None:
    real, emulated = answers["real"][name], answers["emulated"][name]
    assert emulated["unsupported"] == real["unsupported"]
    assert emulated["built"] == real["built"]
    for key in ("inputs", "bounds"):
        assert emulated[key] == real[key]
    for said, expected in zip(emulated["reasons"], real["reasons"], strict=True):
        # The text up to the place in TensorRT's source, which differs.
        assert said[:60] == expected[:60]


def _answer(name: str, folder: Path, real: bool) -> dict[str, Any]:
    from engine.errors import EngineError
    from engine.formats import open_source
    from engine.testing import models
    from engine.types import CompileOptions, Device, DType
    from engine_gpu_trt import engine_compile, engine_load

    maker, _, dtype = name.partition(":")
    changes = {"dtype": DType(dtype)} if dtype else {}
    source = open_source(str(getattr(models, maker)(folder, **changes)))
    options = CompileOptions(device=Device("gpu"))
    loaded = engine_load(source, options)
    answer: dict[str, Any] = {
        "unsupported": sorted(loaded.unsupported),
        "reasons": [loaded.unsupported[index] for index in sorted(loaded.unsupported)],
        "inputs": sorted(loaded.names),
        "bounds": None,
        "built": False,
    }
    try:
        executable = engine_compile(loaded, options)
        answer["built"] = True
        executable.close()
    except EngineError as error:
        # Only the runtime needs the driver, and it comes after the plan is finished.
        answer["built"] = real and "cannot load this engine" in str(error) and "35" in str(error)
        if not answer["built"] and not loaded.unsupported:
            answer["reasons"] = [str(error).partition(": TensorRT error")[2]]
    loaded.close()
    return answer


if __name__ == "__main__":
    import tempfile

    if sys.argv[1] == "real":
        import tensorrt_rtx_bindings
        import tensorrt_rtx_libs  # noqa: F401  # loads the libraries

        from engine_gpu_trt import vendor

        vendor.tensorrt = lambda: tensorrt_rtx_bindings  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as work:
        answers_here = {
            each: _answer(each, Path(work), sys.argv[1] == "real") for each in sys.argv[2:]
        }
    print(json.dumps(answers_here))
