"""Compiling an ONNX model with ATC, CANN's compiler, in a process of its own."""

from __future__ import annotations

import codecs
import contextlib
import importlib.util
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from engine.errors import BackendUnavailable, Cancelled, ModelError
from engine.host.folder import temporary_folder
from engine.types import CancelToken, ModelSource, Progress
from engine_ascend_ge.devices import home
from engine_ascend_ge.shapes import Shapes

LINES_KEPT = 400  # of ATC's output
LINES_SHOWN = 12  # of them, in an error
CHARACTERS_SHOWN = 400  # of a line
_LOOK_EVERY_S = 0.05
_PREFIX = "engine-ascend-"
_MEMORY = "/dev/shm"
_GRACE_S = 2.0  # between asking ATC to end and killing it

# ATC refuses paths with any other character, after following links.
_PATH = re.compile(r"[A-Za-z0-9._/\u4e00-\u9fa5-]+")


def find_compiler(chosen: str) -> list[str]:
    """Return the command that starts ATC: `chosen` (the option), `atc`, or `python -m ge.pyatc`.

    Raises BackendUnavailable where there is none.
    """
    if chosen:
        command = shlex.split(chosen)
        found = shutil.which(command[0])
        if found is None:
            raise BackendUnavailable(
                f"option 'atc': no command {command[0]!r}; give ATC's path, or leave it out",
                "ascend_ge",
            )
        return [found, *command[1:]]
    found = shutil.which("atc")
    if found is None and (folder := home()) is not None:
        found = shutil.which(
            "atc", path=os.pathsep.join((f"{folder}/bin", f"{folder}/compiler/bin"))
        )
    if found is not None:
        return [found]
    package = importlib.util.find_spec("ge")  # found, not imported: it loads CANN's libraries
    for root in (package.submodule_search_locations or ()) if package is not None else ():
        if (Path(root) / "pyatc").is_dir():
            return [sys.executable, "-m", "ge.pyatc"]
    raise BackendUnavailable(
        "ATC is not there: neither 'atc' on PATH or in ASCEND_HOME_PATH nor the module ge.pyatc; "
        "install the CANN toolkit and source its set_env.sh",
        "ascend_ge",
    )


@contextlib.contextmanager
def compiled(
    source: ModelSource,
    command: Sequence[str],
    soc_version: str,
    shapes: Shapes,
    flags: Mapping[str, str],
    timeout_s: float,
    progress: Progress | None,
    cancel: CancelToken | None,
    is_outside: bool = False,
) -> Iterator[Path]:
    """Compile `source` and lend the .om file; it and all that ATC left are removed afterwards.

    command: what starts ATC. flags: further ones, by name. is_outside: the weights go into files in
    a folder beside it, named `external.FOLDER`.
    Raises ModelError with ATC's last lines, Cancelled, BackendUnavailable.
    """
    if cancel is not None:
        cancel.check()
    with _folder(source) as folder:
        if not _PATH.fullmatch(str(folder.resolve())):
            raise BackendUnavailable(
                f"the temporary folder {str(folder.parent)!r} has characters in its path that ATC "
                "refuses; set TMPDIR to a folder of letters, digits, '-', '.' and '_'",
                "ascend_ge",
            )
        if progress is not None:
            progress("prepare", 0, 1)
        model = place_model(source, folder)
        arguments = {
            "framework": "5",  # ONNX
            "model": str(model),
            "output": str(folder / "compiled"),
            "soc_version": soc_version,
            **({"input_shape": shapes.input_shape()} if shapes.is_given else {}),
            **({"dynamic_dims": shapes.dynamic_dims()} if shapes.gears else {}),
            **flags,
            "external_weight": "1" if is_outside else "0",
        }
        if progress is not None:
            progress("prepare", 1, 1)
        code, output = run(
            [*command, *(f"--{name}={value}" for name, value in arguments.items())],
            folder,
            source.name,
            timeout_s,
            progress,
            cancel,
        )
        found = folder / "compiled.om"
        if code != 0 or not found.is_file():
            how = f"exit status {code}" if code else "it wrote no .om file"
            raise ModelError(
                f"{source.name}: ATC could not compile it for {soc_version} ({how}); "
                f"its last lines: {output}",
                source.name,
            )
        yield found


def kernel_cache(folder: Path | None) -> dict[str, str]:
    """Return ATC's flags for keeping compiled kernels in `folder`, if it takes such a path."""
    if folder is None or not _PATH.fullmatch(str(folder.resolve())):
        return {}
    return {"op_compiler_cache_mode": "enable", "op_compiler_cache_dir": str(folder.resolve())}


@contextlib.contextmanager
def _folder(source: ModelSource) -> Iterator[Path]:
    """Lend a folder; what is secret is removed even where this process is killed."""
    parent = _parent(source)
    if source.is_secret:
        with temporary_folder(_PREFIX, Path(parent) if parent else None) as folder:
            yield folder
    else:
        with tempfile.TemporaryDirectory(
            prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True
        ) as path:
            yield Path(path)


def _parent(source: ModelSource) -> str | None:
    """Return where the temporary folder goes: in memory for what must not reach the disk."""
    if not source.is_secret:
        return None
    if os.path.isdir(_MEMORY) and os.access(_MEMORY, os.W_OK):
        return _MEMORY
    raise ModelError(
        f"{source.name}: it is encrypted, and ATC reads and writes files; there is no {_MEMORY} to "
        "keep them in memory, and nothing decrypted is written to disk",
        source.name,
    )


def place_model(source: ModelSource, folder: Path) -> Path:
    """Return the model as a file that ATC takes, with its external data where the file says."""
    if source.data is None:
        assert source.path is not None  # the contract: one of the two is there
        real = source.path.resolve()
        if _PATH.fullmatch(str(real)):
            return real
        model = folder / "model.onnx"
        _same_file(real, model)
    else:
        model = folder / "model.onnx"
        model.write_bytes(source.data)
    parameters = source.graph.parameters if source.graph is not None else ()
    for location in sorted({parameter.location for parameter in parameters if parameter.location}):
        assert source.folder is not None  # external data has a folder; the core has checked it
        there = folder / location
        there.parent.mkdir(parents=True, exist_ok=True)
        _same_file((source.folder / location).resolve(), there)
    return model


def _same_file(source: Path, target: Path) -> None:
    """Let `target` be `source`: a second name where the file system can, else a copy.

    Not a symbolic link, because ATC follows it and then refuses the path behind it.
    """
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def run(
    command: Sequence[str],
    folder: Path,
    name: str,
    timeout_s: float,
    progress: Progress | None,
    cancel: CancelToken | None,
) -> tuple[int, str]:
    """Run ATC in `folder`; return its exit status and last lines, as an error shows them.

    ATC is a shell script over a program that starts Python workers, so it runs as a process group
    and all of that group is ended, whatever way this call is left.
    """
    environment = {
        **os.environ,
        # ATC prints little by itself; its log has the reason. Errors only, to its output.
        "ASCEND_SLOG_PRINT_TO_STDOUT": "1",
        "ASCEND_GLOBAL_LOG_LEVEL": "3",
    }
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise BackendUnavailable(
            f"ATC cannot be started: {error}; run: engine plugins", "ascend_ge"
        ) from error
    assert process.stdout is not None
    stop_at = time.monotonic() + timeout_s
    output = _Output()
    started = time.monotonic()
    try:
        with process.stdout as pipe, selectors.DefaultSelector() as selector:
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
            is_open = True
            while is_open or process.poll() is None:
                if cancel is not None and cancel.cancelled:
                    raise Cancelled(f"{name}: compiling was cancelled by its owner")
                now = time.monotonic()
                if now >= stop_at:
                    raise ModelError(
                        f"{name}: ATC did not finish within {timeout_s:g} s; raise option "
                        f"'compile_timeout_s'; its last lines: {output.tail()}",
                        name,
                    )
                if progress is not None:
                    # ATC counts nothing: what is known is that it works, and for how long.
                    progress(output.phase, int(now - started), None)
                if not is_open or not selector.select(_LOOK_EVERY_S):
                    # A worker that outlives ATC may hold the pipe; ATC's end is the end.
                    if process.poll() is not None:
                        break
                    if not is_open:
                        time.sleep(_LOOK_EVERY_S)
                    continue
                chunk = pipe.read(65536)
                if chunk == b"":
                    selector.unregister(pipe)
                    is_open = False
                elif chunk:
                    output.add(chunk)
        return process.wait(), output.tail()
    finally:
        _end(process)


class _Output:
    """Last lines of a stream that arrives in pieces, and the phase that they show."""

    def __init__(self) -> None:
        self.phase = "start ATC"
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._rest = ""

    def add(self, chunk: bytes) -> None:
        """Take the next piece."""
        *lines, rest = (self._rest + self._decode(chunk)).split("\n")
        self._rest = rest[-4096:]  # dots come without an end of line
        for line in (*lines, self._rest):
            if "ATC start working" in line:
                self.phase = "compile with ATC"
            elif "ATC run success" in line:
                self.phase = "finish ATC"
        self._lines.extend(line for line in map(str.strip, lines) if line)

    def tail(self) -> str:
        """Return ATC's last words on one line, without the dots that it prints while it waits.

        They are its verdict and what follows it, whose first lines say most, else its last lines.
        """
        lines = [
            line[:CHARACTERS_SHOWN]
            for line in (*self._lines, self._rest.strip())
            if line.strip(".")
        ]
        verdicts = [index for index, line in enumerate(lines) if "ATC run failed" in line]
        first = verdicts[-1] if verdicts else max(0, len(lines) - LINES_SHOWN)
        return " | ".join(lines[first : first + LINES_SHOWN]) or "(it printed nothing)"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End ATC and all that it started: ask, wait a little, kill."""
    _signal(process, signal.SIGTERM)
    if process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    _signal(process, signal.SIGKILL)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
