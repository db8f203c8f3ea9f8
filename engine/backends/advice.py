"""Advice on a backend that is not there: what was meant, what is there, what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache

from engine.backends import doors
from engine.backends.doors import BACKENDS, warn_once
from engine.backends.install import pip_install
from engine.backends.names import EXTRAS, OFFICIAL
from engine.backends.records import BackendRecord, BackendState
from engine.options import nearest

# Names that people write for a device that the API calls otherwise.
SYNONYMS = {
    "cpu": ("x86", "arm", "host", "onnxruntime", "ort"),
    "gpu": ("cuda", "nvidia", "tensorrt", "trt", "gpu_trt", "nvtensorrtrtx"),
    "ascend": ("npu", "cann", "acl", "ascend310", "ascend310p", "ascend910", "ascend910b", "ge"),
}


def absent_record(name: str, device_type: str = "", target: str = "") -> BackendRecord:
    """Return the record of a backend that no installed distribution offers for this contract."""
    absent = doors.absent(BACKENDS, name)
    if absent.state is BackendState.INCOMPATIBLE:
        return BackendRecord(**asdict(absent))
    kind = device_type or next((k for k, v in OFFICIAL.items() if name in (k, v)), "")
    asked = f"target {target!r}: " if target and target.lower() != name else ""
    fix = f"run: {pip_install(EXTRAS[kind])}" if kind else hint_for(target or name) or absent.fix
    return BackendRecord(name=name, state=absent.state, reason=f"{asked}{absent.reason}", fix=fix)


def nearest_target(text: str) -> str:
    """Return the target that `text` was probably meant to be, "" if there is none.

    A word of the vendor's for a device type of the API, or a name that is misspelt.
    """
    name = text.lower().partition(":")[0].removesuffix("executionprovider")
    return _synonym(name) or nearest(name, (*EXTRAS, *doors.names(BACKENDS)))


def _nearest_backend(text: str, names: Sequence[str]) -> str:
    """Return the one of these backends that `text` was probably meant to be, "" for none."""
    own = OFFICIAL.get(_synonym(text.lower()) or text.lower(), "")
    return own if own in names else nearest(text, names)


def _synonym(name: str) -> str:
    return next((kind for kind, words in SYNONYMS.items() if name in words), "")


def hint_for(text: str) -> str:
    """Return what to do about a target that is none, as "did you mean 'cpu'?"; "" for nothing."""
    parts = [part.strip() for part in re.split(r"[,;]", text)]
    if len(parts) > 1:
        named = [part for part in parts if part]
        return (
            f"write several targets as a list, {named}, on a command line and in ENGINE_TARGET as "
            f"{','.join(named)}"
        )
    near = nearest_target(text)
    return f"did you mean {near!r}?" if near else ""


@cache
def disabled(text: str) -> tuple[str, ...]:
    """Return the names in ENGINE_DISABLED_BACKENDS; a word, once, on those that are none."""
    names = tuple(filter(None, re.split(r"[,;\s]+", text)))
    here = doors.known(BACKENDS)
    for name in names:
        if name not in here:
            near = _nearest_backend(name, here)
            hint = f"; did you mean {near!r}?" if near else ""
            warn_once(
                f"ENGINE_DISABLED_BACKENDS names {name!r}, and no backend of that name is "
                f"installed (installed: {', '.join(here) or 'none'}){hint}"
            )
    return names
