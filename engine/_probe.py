"""Looks at one backend in a process of its own: `python -P -m engine._probe NAME FD`.

A driver that crashes or hangs while it is probed then costs that process and no other. The
record comes back as JSON in a file of its own, so what a plugin prints does not matter.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from typing import Any

from engine.backends import BackendRecord, BackendState, crashed, record
from engine.types import BackendInfo, Device, DeviceInfo, Devices

TIME_LIMIT_S = 30.0


def probe(name: str, time_limit_s: float = TIME_LIMIT_S) -> BackendRecord:
    """The record of backend `name` as a fresh process sees it; a crash or hang makes it BROKEN."""
    # Files, not pipes: what a plugin leaves running may hold a pipe open for ever.
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "engine._probe", name, str(answer.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(answer.fileno(),),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            start_new_session=True,
        )
        try:
            status = child.wait(time_limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return crashed(name, f"its probe did not answer within {time_limit_s:g} s")
        if status != 0:
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
            said = f" ({last[0].strip()})" if last else ""
            return crashed(name, f"its probe {_end(status)}{said}")
        answer.seek(0)
        try:
            return from_json(json.loads(answer.read()))
        except ValueError:
            return crashed(name, "its probe ended without an answer")


def to_json(found: BackendRecord) -> dict[str, Any]:
    """A record as plain JSON values."""
    info = found.info
    if info is None:
        return asdict(found)
    plain = replace(info, suffixes=dict(info.suffixes), capabilities=frozenset())
    values = asdict(replace(found, info=plain))
    values["info"]["capabilities"] = sorted(info.capabilities)
    return values


def from_json(values: dict[str, Any]) -> BackendRecord:
    """The record that `to_json` wrote."""
    info, devices = values["info"], values["devices"]
    if info is not None:
        for key in ("device_types", "providers", "formats"):
            info[key] = tuple(info[key])
        info = BackendInfo(**{**info, "capabilities": frozenset(info["capabilities"])})
    if devices is not None:
        found = tuple(
            DeviceInfo(Device(**each["device"]), each["name"], each["memory_bytes"])
            for each in devices["found"]
        )
        devices = Devices(found, devices["reason"], devices["fix"])
    return BackendRecord(
        **{
            **values,
            "state": BackendState(values["state"]),
            "info": info,
            "devices": devices,
            "warnings": tuple(values["warnings"]),
        }
    )


def _end(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"crashed with {signal.Signals(-status).name}"
    except ValueError:
        return f"crashed with signal {-status}"


if __name__ == "__main__":
    text = json.dumps(to_json(record(sys.argv[1])))
    with os.fdopen(int(sys.argv[2]), "w") as answer:
        answer.write(text)
