"""Programs that import onnxruntime, unchanged, on the engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine_testing import models
from engine_testing.plugins import install

PROGRAM = """
import importlib.util, multiprocessing, sys
import numpy as np
import onnxruntime
import onnxruntime.quantization
from onnxruntime import InferenceSession, SessionOptions
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession as Same
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

def work(path):
    import onnxruntime
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    return onnxruntime.InferenceSession.__module__, onnxruntime.InferenceSession(path).run(
        None, {"x": x})[0].tolist()

if __name__ == "__main__":
    assert Same is InferenceSession and C.SessionOptions is SessionOptions
    assert importlib.util.find_spec("onnxruntime") is not None
    print(InferenceSession.__module__, *sys.argv[2:])
    print(onnxruntime.quantization.quantize_dynamic.__module__)
    try:
        InferenceSession(sys.argv[1]).run(None, {"x": np.zeros((2, 3))})
    except InvalidArgument as error:
        print("caught", "Unexpected input data type" in str(error))
    expected = ("engine.onnxruntime.session", [[1, 3, 5], [7, 9, 11]])
    for method in ("spawn", "forkserver", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.apply(work, (sys.argv[1],)) == expected)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=250)


def test_a_program_runs_on_the_engine(tmp_path: Path) -> None:
    text = (
        "import sys\nfrom onnxruntime import InferenceSession\n"
        "session = InferenceSession(sys.argv[1])\n"
        "print(type(session).__module__, session.run(None, {'x': [[1.0, 2.0, 3.0]]})[0].tolist())\n"
    )
    (tmp_path / "runs.py").write_text(text)
    model = str(models.affine(tmp_path))
    done = run("-m", "engine.onnxruntime", "runs.py", model, folder=tmp_path)
    assert done.stdout == "engine.onnxruntime.session [[3.0, 5.0, 7.0]]\n", done.stderr


def test_a_session_for_the_cpu_looks_for_no_other_device(tmp_path: Path) -> None:
    text = (
        "import sys, engine.onnxruntime as ort\n"
        "ort.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
        "print(*(n for n in sys.modules if n.startswith(('engine_gpu', 'engine_ascend')) or\n"
        "        n == 'engine.backends.isolation.probe'))\n"
        "ort.InferenceSession(sys.argv[1], providers=['CUDAExecutionProvider'])\n"
        "print('engine.backends.isolation.probe' in sys.modules)\n"
    )
    done = run("-W", "ignore", "-c", text, str(models.affine(tmp_path)), folder=tmp_path)
    assert done.stdout == "\nTrue\n", done.stderr


TOY = """
from dataclasses import replace
from engine.hookspecs import hookimpl
from engine.types import Device, DeviceInfo, Devices
from engine_testing import null

@hookimpl
def engine_backend():
    return replace(null.engine_backend(), name="openvino", device_types=("cpu",))

@hookimpl
def engine_devices():
    return Devices(found=(DeviceInfo(Device("cpu", 0), "another runtime"),))

@hookimpl
def engine_load(source, options):
    from engine.reference.evaluator import load
    return load(source, null.host("openvino", Device("cpu", 0), options.options))

engine_compile = null.engine_compile

@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    return [-y for y in context.run(inputs, outputs, deadline_s)]
"""
"""A backend of the CPU beside this project's own; its results have the other sign."""


def test_another_backend_of_the_cpu_runs_a_session_only_where_it_is_named_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "import sys, engine.onnxruntime as ort\n"
        "vino, cpu = ort.get_available_providers()\n"
        "for given in (None, [], [cpu], [cpu, vino], [vino], [vino, cpu]):\n"
        "    session = ort.InferenceSession(sys.argv[1], providers=given)\n"
        "    [y] = session.run(None, {'x': [[1.0, 2.0, 3.0]]})\n"
        "    print(*session.get_providers(), *y[0])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    install(tmp_path / "site", "openvino", "toy_openvino", source=TOY)
    done = run("-c", text, str(models.affine(tmp_path)), folder=tmp_path)
    cpu = "CPUExecutionProvider 3.0 5.0 7.0"
    named = "OpenVINOExecutionProvider CPUExecutionProvider -3.0 -5.0 -7.0"
    assert done.stdout.splitlines() == [*[cpu] * 4, named, named], done.stderr
    assert done.stderr == ""  # in particular no section of a configuration that is not read


@pytest.mark.slow
@pytest.mark.parametrize("how", ["program", "module", "script"])
def test_a_program_runs_on_the_engine_with_its_children(
    how: str, program: Path, tmp_path: Path
) -> None:
    model = str(models.affine(tmp_path))
    dash_m = ("-m", "engine.onnxruntime")
    if how == "program":
        done = run(*dash_m, str(program), model, "--more", folder=tmp_path)
    elif how == "module":
        done = run(*dash_m, "-m", "program", model, "--more", folder=tmp_path)
    else:
        text = f"import engine.onnxruntime as ort\nort.install()\nort.install()\n{PROGRAM}"
        program.write_text(text)
        done = run(str(program), model, "--more", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "engine.onnxruntime.session --more",
        "onnxruntime.quantization.quantize",
        "caught True",
        "spawn True",
        "forkserver True",
        "fork True",
    ]


def test_the_engine_itself_goes_on_with_onnxruntimes_own_session(tmp_path: Path) -> None:
    text = (
        "import sys, engine.onnxruntime as ort\n"
        "ort.install()\n"
        "import onnxruntime, engine\n"
        "model = engine.load(sys.argv[1])\n"
        "import engine_cpu.session\n"
        "print(engine_cpu.session.ort is onnxruntime.genuine, engine_cpu.session.ort.__name__)\n"
    )
    done = run("-c", text, str(models.affine(tmp_path)), folder=tmp_path)
    assert done.stdout == "True onnxruntime\n", done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([], 1, "which program is to run?"),
        (["-m"], 1, "which program is to run?"),
        (["--no-such-option"], 1, "which program is to run?"),
        (["--help"], 0, "usage: python -m engine.onnxruntime"),
        (["-m", "no_such_module"], 1, f"{sys.executable}: No module named no_such_module\n"),
        (["-m", "json.no_such"], 1, f"{sys.executable}: No module named json.no_such\n"),
        (["-m", "json"], 1, f"{sys.executable}: No module named json.__main__\n"),
        (["no_such_program.py"], 1, "no_such_program.py: No such file or directory\nusage: "),
    ],
)
def test_the_command_says_what_it_takes(
    arguments: list[str], status: int, text: str, tmp_path: Path
) -> None:
    done = run("-m", "engine.onnxruntime", *arguments, folder=tmp_path)
    assert done.returncode == status
    assert text in done.stdout + done.stderr


def test_a_program_ends_with_its_own_status(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(7)\n")
    assert run("-m", "engine.onnxruntime", "ends.py", folder=tmp_path).returncode == 7
