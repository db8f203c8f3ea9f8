"""The configuration that a tuning writes: the chosen settings, for whom they are, and the evidence.

    [cpu_context]
    rewrites=on
    [tuned]
    target=cpu
    threads=1
    model=5d41...
    machine=...

Section [tuned] says the target, the threads and the workers, which a configuration has no other
place for, and what must be the same where it is read: see taking.py.
"""

from __future__ import annotations

import json
from pathlib import Path

from engine.config.declared import Sections
from engine.errors import InputError
from engine.report.choice.evidence import Setup

SECTION = "tuned"
KEYS = (
    "target", "default", "threads", "workers", "max_batch_size", "file", "model", "core", "machine",
    "backend *", "device *", "goal", "evidence",
)  # fmt: skip
"""Keys of the section; a name that ends in "*" stands for all that begin so."""

_AS_JSON = (".json", ".yaml", ".yml")  # JSON is YAML


def settings_of(setup: Setup, default: Setup, file: str) -> dict[str, str]:
    """Return what section [tuned] says of a setup.

    default: the one that it was compared with. file: the name of the model, if it was written too.
    """
    numbers = {
        "threads": setup.threads, "workers": setup.workers, "max_batch_size": setup.max_batch
    }  # fmt: skip
    return {
        "target": ",".join(setup.targets),
        "default": ",".join(default.targets),
        **{name: str(number) for name, number in numbers.items() if number},
        **({"file": file} if setup.form else {}),
    }


def text_of(sections: Sections, comment: str, suffix: str) -> str:
    """Return sections as a text in the format that a file's suffix stands for.

    comment: lines for people, where the format has a place for them.
    """
    if suffix in _AS_JSON:
        return json.dumps(sections, indent=1) + "\n"
    quoted = json.dumps if suffix == ".toml" else str
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    for name, keys in sections.items():
        lines += ["", f"[{name}]"]
        lines += [f"{quoted(key)}={quoted(value)}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def require_writable(sections: Sections, path: Path) -> None:
    """Raise InputError for settings that a file cannot hold, in MindSpore Lite's format or any."""
    is_of_any_text = path.suffix.lower() in (*_AS_JSON, ".toml")
    for name, keys in sections.items():
        for key, value in keys.items():
            text = f"{key}={value}"
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InputError(
                    f"{path}: [{name}] {key}={value!r} is no text, which is all that a "
                    f"configuration can hold: {error.reason}"
                ) from error
            if is_of_any_text:
                continue
            if text != text.strip() or "\n" in text or "=" in key or value[:1] in ("'", '"'):
                raise InputError(
                    f"{path}: [{name}] {key} cannot be written in this format; name a .toml file"
                )
