"""ONNX Runtime's messages, in one line, with what they mean where that is known."""

from __future__ import annotations

import re

import onnxruntime as ort


def explained(text: str) -> str:
    """Return ONNX Runtime's reason for refusing a model, in one line."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", " ".join(text.split()))
    text = re.sub(r"(/[\w./-]+/)?onnxruntime/[\w./]+:\d+ ", "", text)
    missing = re.search(
        r"(?:Could not find an implementation|Failed to find kernel) for (\w+)\((\d+)\)", text
    )
    if missing:
        return (
            f"operator {missing[1]!r} (version {missing[2]}) has no CPU kernel for these types "
            f"in onnxruntime {ort.__version__}: {text}"
        )
    name = unknown_operator(text)
    if name:
        domain, _, name = name.rpartition(":")
        where = f" of domain {domain!r}" if domain else ""
        return f"operator {name!r}{where} is unknown to onnxruntime {ort.__version__}: {text}"
    return text


def unknown_operator(text: str) -> str:
    """Return the unknown operator that a message names, as "domain:name"; "" for none."""
    match = re.search(r"(?:Fatal error: )?([\w.]*:?[\w.]+)\(-1\) is not a registered", text)
    if match is None:
        match = re.search(r"No Op registered for (\w+)", text)
    return match[1] if match else ""
