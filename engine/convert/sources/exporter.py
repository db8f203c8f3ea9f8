"""Run a framework's exporter in a process of its own.

Its log stays off the user's terminal, a crash on a damaged file costs that process only, and a
cancel ends it at once. That is no wall against a hostile file: the process has the user's rights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from engine.convert.job import Job, Read
from engine.convert.scratch import scratch
from engine.errors import ModelError, one_line
from engine.host.child import ending, environment, kill, start

if TYPE_CHECKING:
    from onnx import GraphProto

Shapes: TypeAlias = Mapping[str, Sequence[int]]

_STEPS = 3  # packages imported, model read, ONNX written
_NOTE_LINES = 20


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
    asked = folder / "request.json"
    asked.write_text(json.dumps(request))
    with (folder / "answers").open("w+b") as answers, (folder / "log").open("w+b") as log:
        descriptor = answers.fileno()
        arguments = module, str(asked), str(descriptor)
        child = start(
            ["-W", "ignore", "-c", f"from {__name__} import serve; serve()", *arguments],
            log,
            # What it leaves in its temporary files when it is killed goes with the folder.
            env=environment(TMPDIR=str(folder)),
            pass_fds=(descriptor,),
        )
        shown = -1
        try:
            while child.returncode is None:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(0.05)
                job.cancel.check()
                answer = _answer(descriptor)
                if answer["done"] > shown:
                    shown = answer["done"]
                    job.progress("exporting", shown, _STEPS)
        finally:
            if child.returncode is None:
                kill(child)
        if answer["is_written"] and child.returncode == 0:
            return list(answer["notes"])
        end = ending(child.returncode) or "gave no answer"
        problem = answer["error"] or f"the exporter {end}; the file may be damaged"
        error = ModelError(
            f"{job.model_file}: cannot be converted from {framework}: {problem}",
            str(job.model_file),
        )
        log.seek(0)
        last_lines = log.read().decode(errors="replace").strip().splitlines()[-_NOTE_LINES:]
        if last_lines:
            error.add_note("\n".join(["the exporter printed last:", *last_lines]))
        raise error


def _answer(descriptor: int) -> dict[str, Any]:
    answer: dict[str, Any] = {"done": 0, "error": "", "notes": (), "is_written": False}
    # The child writes at the file's position, which is shared: read beside it.
    for line in os.pread(descriptor, 1 << 20, 0).splitlines():
        with suppress(ValueError):  # not all of it is written yet
            answer |= json.loads(line)
    return answer


def serve() -> None:
    """Serve one export in the child process; sys.argv: module, request file, answer file."""
    os.dup2(2, 1)  # what is printed goes into the log
    answers = os.fdopen(int(sys.argv[3]), "w")
    try:
        _serve(answers)
    except ModelError as error:
        _say(answers, error=str(error))
    except Exception as error:
        # What an exporter raises last is advice on how to report it: the reason is the first.
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
        _say(answers, error=shortened(one_line(reason)))
        raise


def _serve(answers: IO[str]) -> None:
    module, request = import_module(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        _say(answers, done=done)

    notes = module.export(request, step) or ()
    _check(request["result"])
    _say(answers, notes=notes, is_written=True)


def _say(answers: IO[str], **values: object) -> None:
    print(json.dumps(values), file=answers, flush=True)


def shortened(text: str, length: int = 400) -> str:
    """Shorten an exporter's error text."""
    return text if len(text) <= length else f"{text[:length]} ..."


def _check(path: str) -> None:
    import onnx

    model = onnx.load(path, load_external_data=False)
    versions = {opset.domain: opset.version for opset in model.opset_import}
    # tf2onnx keeps what it cannot convert as it is.
    strange = {
        node.op_type
        for node in _nodes(model.graph)
        if not onnx.defs.has(node.op_type, versions.get(node.domain, 1), node.domain)
    } - {function.name for function in model.functions}
    if strange:
        raise ModelError(
            f"the exporter has no ONNX operators for {', '.join(sorted(strange))}; write the model "
            "without them, or cut it in two around them"
        )
    onnx.checker.check_model(path)


def _nodes(graph: GraphProto) -> list[Any]:
    nodes = list(graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                nodes += _nodes(inner)
    return nodes
