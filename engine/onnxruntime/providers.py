"""Execution providers: the engine's targets in onnxruntime's words."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Sequence
from typing import Any

from engine.backends import BackendState, find_target, record
from engine.errors import BackendError
from engine.onnxruntime.errors import made
from engine.onnxruntime.genuine import native

TARGETS = {
    "TensorrtExecutionProvider": "gpu",
    "CUDAExecutionProvider": "gpu",
    "CANNExecutionProvider": "ascend",
    "OpenVINOExecutionProvider": "openvino",
    "CPUExecutionProvider": "cpu",
}
"""The target that each provider is, in onnxruntime's order."""

_OTHERS = (
    "MIGraphXExecutionProvider", "ROCMExecutionProvider", "DnnlExecutionProvider",
    "VitisAIExecutionProvider", "QNNExecutionProvider", "NnapiExecutionProvider",
    "VSINPUExecutionProvider", "JsExecutionProvider", "CoreMLExecutionProvider",
    "ArmNNExecutionProvider", "ACLExecutionProvider", "DmlExecutionProvider",
    "RknpuExecutionProvider", "WebNNExecutionProvider", "WebGpuExecutionProvider",
    "XnnpackExecutionProvider", "AzureExecutionProvider", "SNPEExecutionProvider",
    "NvTensorRTRTXExecutionProvider",
)  # fmt: skip
"""Providers that are no target here, and so are never there."""

CPU = "CPUExecutionProvider"

Asked = dict[str, dict[str, str]]
"""Providers in their order, each with its options."""


def get_all_providers() -> list[str]:
    """Return the names of all providers that onnxruntime knows, in its order."""
    if native is not None:
        return list(native.get_all_providers())
    return [*(name for name in TARGETS if name != CPU), *_OTHERS, CPU]


def get_available_providers() -> list[str]:
    """Return the providers of which there is a device, in onnxruntime's order."""
    return [name for name, target in TARGETS.items() if is_there(target)]


def is_there(target: str) -> bool:
    """Return whether a backend serves a target, with a device; looked for once a process."""
    return bool(target) and _is_there(os.environ.get("ENGINE_TARGET") or target)


@functools.cache
def _is_there(target: str) -> bool:
    try:
        return record(find_target(target).backend).state is BackendState.READY
    except BackendError:
        return False


def check_and_normalize_provider_args(
    providers: Sequence[Any] | None,
    provider_options: Sequence[dict[Any, Any]] | None,
    available_provider_names: Sequence[str],
) -> tuple[list[str], list[dict[str, str]]]:
    """Return the names of the providers and the options of each, all of them as text.

    One that is not available is a warning, one that is named twice too. Raises ValueError.
    """
    if providers is None:
        return [], []
    found: Asked = {}

    def add(name: str, options: dict[Any, Any]) -> None:
        if name not in available_provider_names:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names."
                f"Available providers: '{', '.join(available_provider_names)}'",
                stacklevel=7,
            )
        if name in found:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=7)
            return
        found[name] = {str(key): str(value) for key, value in options.items()}

    if not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")  # noqa: TRY004 - onnxruntime's
    if provider_options is None:
        for provider in providers:
            match provider:
                case str():
                    add(provider, {})
                case (str() as name, dict() as options):
                    add(name, options)
                case _:
                    raise ValueError(
                        "'providers' values must be either strings or (string, dict) tuples."
                    )
        return list(found), list(found.values())
    if not isinstance(provider_options, Sequence):
        raise ValueError("'provider_options' should be a sequence.")  # noqa: TRY004
    if len(providers) != len(provider_options):
        raise ValueError(
            "'providers' and 'provider_options' should be the same length if both are given."
        )
    if not all(isinstance(provider, str) for provider in providers):
        raise ValueError(
            "Only string values for 'providers' are supported if 'provider_options' is given."
        )
    if not all(isinstance(options, dict) for options in provider_options):
        raise ValueError("'provider_options' values must be dicts.")
    for name, options in zip(providers, provider_options, strict=True):
        add(name, options)
    return list(found), list(found.values())


def _available_of(providers: Any) -> list[str]:
    """Return the providers that are there; where all that are given are, no others but the CPU.

    To look for a device of each other takes a process each, and up to a second.
    """
    if isinstance(providers, list | tuple) and providers:
        names = [item[0] if isinstance(item, tuple) and item else item for item in providers]
        if all(isinstance(name, str) and is_there(TARGETS.get(name, "")) for name in names):
            return [*names, *([CPU] if CPU not in names and is_there(TARGETS[CPU]) else [])]
    return get_available_providers()


def _by_default() -> list[str]:
    """Return the providers of a session that names none: the installed onnxruntime's, as it does.

    Without it, or where none of these is there, all that are.
    """
    theirs = TARGETS if native is None else native.get_available_providers()
    found = [name for name, target in TARGETS.items() if name in theirs and is_there(target)]
    return found or get_available_providers()


def asked(providers: Any, provider_options: Any, noted: Sequence[tuple[str, Any]]) -> Asked:
    """Return the providers that a session is to run on: those that are there, and the CPU.

    noted: those of its options, for a session without any of its own. Raises ValueError,
    and RuntimeError for a name that onnxruntime does not know.
    """
    providers = providers or [*noted]
    if not providers:
        providers, provider_options = _by_default(), None
    available = _available_of(providers)
    names, options = check_and_normalize_provider_args(providers, provider_options, available)
    for name in names:
        if name not in TARGETS and name not in (*_OTHERS, *get_all_providers()):
            raise RuntimeError(f"Unknown Provider Type: {name}")
    found = {name: given for name, given in zip(names, options) if name in available}
    if CPU in available:
        found.setdefault(CPU, {})  # last where nobody says otherwise: what the others do not run
    if not found:
        raise made("Fail", f"none of {', '.join(names)} is here: see `engine doctor`")
    return found
