"""The short way: one call from a file to a model that runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from engine.config.checks import require_sections
from engine.context import Context
from engine.model import Model, ModelType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.types import CancelToken, Progress

__all__ = ["load"]


def load(
    path: str | os.PathLike[str],
    target: str | Sequence[str] = "cpu",
    *,
    threads: int = 0,
    device_id: int = 0,
    config: dict[str, dict[str, str]] | None = None,
    dec_key: bytes | None = None,
    dec_mode: str = "AES-GCM",
    progress: Progress | None = None,
    cancel: CancelToken | None = None,
) -> Model:
    """Build a model from a file and return it.

    target: a device type or backend, or several to fall back through in order.
    threads: host threads inside one operator; 0 fits them to the machine.
    device_id: which GPU or NPU. config: sections of options, as Model.build_from_file takes them.
    dec_key, dec_mode: for an encrypted file.
    progress, cancel: for backends whose compiling takes long.
    Raises what Model.build_from_file raises. Use the model in a `with` block to free it.
    """
    context = Context()
    targets: Any = [target] if isinstance(target, str) else target
    context.target = list(targets) if isinstance(targets, tuple) else targets
    context.cpu.thread_num = threads
    context.gpu.device_id = context.ascend.device_id = device_id
    if device_id:
        config = require_sections("config_dict", config or {})
        from engine.config.reader import number_devices

        number_devices(context.target, config, device_id)
    model = Model()
    model.build_from_file(
        os.fspath(path) if isinstance(path, os.PathLike) else path,
        ModelType.MINDIR,
        context,
        config_dict=config,
        dec_key=dec_key,
        dec_mode=dec_mode,
        progress=progress,
        cancel=cancel,
    )
    return model
