"""Run a framework's exporter in a process of its own.

Its log stays off the user's terminal, a crash on a damaged file costs that process only, and a
cancel ends it at once. That is no wall against a hostile file: the process has the user's rights.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from engine.converter.job import Job, Read
from engine.converter.scratch import scratch
from engine.errors import ModelError, one_line
from engine.host.child import environment
from engine.host.worker import Ended, Worker

Shapes: TypeAlias = Mapping[str, Sequence[int]]

_STEPS = 3  # packages imported, model read, ONNX written
_NOTE_LINES = 20
_LONGEST = 400  # characters of an error
_LOOK_S = 0.05  # how soon a cancel is seen
_LOG_S = 2.0  # for the traceback that follows an error

# The part of the user's environment that an exporter gets: these names, and those that begin so.
_NAMES = frozenset(
    (
        "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOGNAME", "PATH", "TMPDIR",
        "TZ", "USER", "VIRTUAL_ENV",
    )
)  # fmt: skip
_PREFIXES = (
    "CONDA_", "CUDA_", "DYLD_", "KERAS_", "KMP_", "LC_", "MKL_", "NVIDIA_", "OMP_", "ONEDNN_",
    "OPENBLAS_", "PYTHON", "PYTORCH_", "TF2ONNX_", "TF_", "TORCH", "XDG_", "XLA_",
)  # fmt: skip
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH")


def exported(job: Job, module: str, framework: str, extra: str, packages: Sequence[str]) -> Read:
    """Run `module.export(request, step)` on the job's model in a process of its own.

    request: "model" and "result" (paths), "input_shape", "input_dtype" (a numpy name or None).
        The function writes ONNX to "result" and calls `step()` when the packages are imported and
        when the model is read. It returns notes for the report, or None.
    framework, extra, packages: for the message where one of the packages is not installed.
    Raises ModelError, with the end of what the exporter printed as a note; Cancelled.
    """
    missing = [package for package in ("onnx", *packages) if find_spec(package) is None]
    if missing:
        raise ModelError(
            f"converting {framework} models needs {' and '.join(missing)}; run: "
            f'pip install "inference-engine[{extra}]"',
            str(job.model_file),
        )
    import onnx

    with scratch(job) as folder:
        result = folder / "model.onnx"
        dtype = job.input_dtype
        request = {
            "model": os.path.abspath(job.model_file),
            "result": str(result),
            "input_shape": {name: list(shape) for name, shape in job.input_shape.items()},
            "input_dtype": None if dtype is None else dtype.name.lower(),
        }
        notes = _run(job, framework, module, request, folder)
        job.cancel.check()
        model = onnx.load(result)
    job.progress("exporting", _STEPS, _STEPS)
    return model, notes


def _run(
    job: Job, framework: str, module: str, request: Mapping[str, Any], folder: Path
) -> list[str]:
    # Temporary files that it leaves when it is killed go with the folder.
    env = {**environment(), "TMPDIR": str(folder)}
    answer: dict[str, Any] = {"done": 0, "error": "", "notes": (), "is_written": False}
    shown = -1
    worker = Worker(f"{__name__}:serve", (module, request), env=allowed(env))
    try:
        while not answer["is_written"] and not answer["error"]:
            job.cancel.check()
            if answer["done"] > shown:
                shown = answer["done"]
                job.progress("exporting", shown, _STEPS)
            with suppress(TimeoutError):
                answer |= worker.receive(_LOOK_S)
    except Ended as ended:
        how = ended.end if ended.status else "gave no answer"
        answer["error"] = f"the exporter {how}; the file may be damaged"
    except BaseException:
        worker.close()
        raise
    if answer["error"]:
        worker.wait(_LOG_S)
    log = worker.errors()
    worker.leave()  # frameworks take seconds to end, after all has been said
    if not answer["error"]:
        return list(answer["notes"])
    problem = answer["error"]
    error = job.error(f"cannot be converted from {framework}: {problem}")
    last_lines = log.strip().splitlines()[-_NOTE_LINES:]
    if last_lines:
        error.add_note("\n".join(["the exporter printed last:", *last_lines]))
    raise error


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what of an environment frameworks read; what others keep in theirs stays out.

    A model's file is not always from a friend, and some formats hold programs.
    """
    return {
        name: value
        for name, value in environment.items()
        if (name in _NAMES or name.startswith(_PREFIXES)) and not _SECRET.search(name)
    }


def serve(request: tuple[str, Mapping[str, Any]], parent: Connection) -> None:
    """Serve one export in the worker: call the module's `export`, and check what it wrote."""
    os.dup2(2, 1)  # what is printed goes into the log
    warnings.simplefilter("ignore")
    try:
        _export(*request, parent)
    except ModelError as error:
        parent.send({"error": str(error)})
    except Exception as error:
        # The last exception of an exporter is advice on how to report it: the reason is the first.
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
        parent.send({"error": shortened(one_line(reason))})
        raise


def _export(module: str, request: Mapping[str, Any], parent: Connection) -> None:
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        parent.send({"done": done})

    notes = import_module(module).export(request, step) or ()
    _check(request["result"])
    parent.send({"notes": notes, "is_written": True})


def shortened(text: str) -> str:
    """Shorten an exporter's error text."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _check(path: str) -> None:
    import onnx

    from engine.formats.onnx.graphs import bodies

    model = onnx.load(path, load_external_data=False)
    versions = {
        opset.domain: opset.version
        for holder in (*model.functions, model)  # a function may use what the model does not
        for opset in holder.opset_import
    }
    # tf2onnx keeps what it cannot convert as it is.
    strange = {
        node.op_type
        for body in bodies(model)
        for node in body.node
        if not onnx.defs.has(node.op_type, versions.get(node.domain, 1), node.domain)
    } - {function.name for function in model.functions}
    if strange:
        raise ModelError(
            f"the exporter has no ONNX operators for {', '.join(sorted(strange))}; write the model "
            "without them, or cut it in two around them"
        )
    onnx.checker.check_model(path)
