"""The environment variables that begin with ENGINE_: what those that are set do."""

from __future__ import annotations

from collections.abc import Mapping

from engine.backends import doors, installed, is_target
from engine.errors import CommunicatorError
from engine.host.threads import local_processes
from engine.options import nearest
from engine.report.diagnosis.finding import Finding, Status
from engine.weights.compile_cache import Mode

_PREFIX = "ENGINE_"

VARIABLES = {
    "ENGINE_CACHE": "on, wait, read or off: how the compile cache is used",
    "ENGINE_CACHE_DIR": "the compile cache lies there",
    "ENGINE_DEBUG": "the command line shows the traceback of an error",
    "ENGINE_DEC_KEY": "the key of the encrypted models that commands are given",
    "ENGINE_DISABLED_BACKENDS": "these backends are not used although they are installed",
    "ENGINE_EXTENSIONS": "these extensions and observers are on for the models that are built",
    "ENGINE_LOCAL_SIZE": "so many processes of this job share the CPUs of this machine",
    "ENGINE_ONNX_BACKEND": "onnx's own test runner drives this backend",
    "ENGINE_PASSES": "these passes rewrite the graphs of the models that are built",
    "ENGINE_RANK": "this process is that rank of its job",
    "ENGINE_RANKS_TIMEOUT_S": "ranks wait so long for each other",
    "ENGINE_STORE": "the ranks of this job find each other there",
    "ENGINE_STORE_KEY": "what the ranks of this job know each other by",
    "ENGINE_TARGET": "models run there, whatever target their script or command names",
    "ENGINE_TRANSPORT": "the ranks of this job exchange tensors by this transport",
    "ENGINE_WORLD_SIZE": "so many ranks run one sliced model together",
}
"""Every such variable that the core and this project's backends read, and what it does."""


def look_at_variables(environ: Mapping[str, str]) -> list[Finding]:
    """Return a note on each that is set; a problem where its value stops every model."""
    findings = []
    for name in sorted(key for key in environ if key.startswith(_PREFIX)):
        if name not in VARIABLES:
            findings.append(_unknown(name))
        elif environ[name]:  # an empty one is as good as none
            findings.append(_known(name, environ[name]))
    return findings


def _known(name: str, value: str) -> Finding:
    shown = "(not shown)" if name.endswith("_KEY") else repr(value)
    status, text = Status.NOTE, f"{shown}: {VARIABLES[name]}"
    is_wrong = False
    parts = [part for part in value.replace(" ", "").split(",") if part]
    if name in ("ENGINE_TARGET", "ENGINE_DISABLED_BACKENDS", "ENGINE_EXTENSIONS"):
        here = installed()
        if name == "ENGINE_EXTENSIONS":
            here = doors.names(doors.EXTENSIONS)
            parts = [part.partition(";")[0] for part in parts]
        is_known = is_target if name == "ENGINE_TARGET" else here.__contains__
        if absent := ", ".join(repr(part) for part in parts if not is_known(part)):
            is_wrong = True
            what = "no backend serves" if name == "ENGINE_TARGET" else "there is no"
            stops = ", so no model can be built" if name == "ENGINE_EXTENSIONS" else ""
            text += f"; {what} {absent}{stops} (installed: {', '.join(here) or 'none'})"
            if name != "ENGINE_DISABLED_BACKENDS":
                status = Status.PROBLEM
    elif name == "ENGINE_CACHE" and value.lower() not in {*Mode}:
        status = Status.PROBLEM
        text = f"{value!r}: expected {', '.join(Mode)}, so no model can be built"
    elif name == "ENGINE_LOCAL_SIZE":
        try:
            local_processes({name: value})
        except CommunicatorError as error:
            status = Status.PROBLEM
            text = f"{str(error).removeprefix(f'{name}=')}, so no model can be built"
    is_wrong = is_wrong or status is Status.PROBLEM
    return Finding(status, name, text, f"run: unset {name}" if is_wrong else "")


def _unknown(name: str) -> Finding:
    words = [known.removeprefix(_PREFIX) for known in VARIABLES]
    near = nearest(name.removeprefix(_PREFIX), words)
    hint = f"; did you mean {_PREFIX}{near}?" if near else ""
    fix = f"run: unset {name}"
    return Finding(Status.NOTE, name, f"nothing of this project reads it{hint}", fix)
