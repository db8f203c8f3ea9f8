"""The short way: one call from a file to a model that runs."""

from __future__ import annotations

import os
from collections.abc import Sized
from typing import TYPE_CHECKING, Any

from engine.config.checks import require_count
from engine.config.wording import own_text, reworded
from engine.context import Context
from engine.errors import EngineError, ModelNotFound
from engine.model import Model, ModelType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

    from onnx import ModelProto

    from engine.types import CancelToken, Progress
    from engine.typing import DecMode

__all__ = ["load"]


def load(
    model: str | os.PathLike[str] | bytes | BinaryIO | ModelProto,
    target: str | Sequence[str] = "cpu",
    *,
    threads: int = 0,
    device_id: int = 0,
    config: str | os.PathLike[str] | Mapping[str, Mapping[str, Any]] | None = None,
    dec_key: bytes | None = None,
    dec_mode: DecMode = "AES-GCM",
    variable_weights: Sequence[str] = (),
    progress: Progress | None = None,
    cancel: CancelToken | None = None,
) -> Model:
    """Build a model and return it.

    model: the path of its file, or of a folder that holds one model, as the hub's do; or the model
    in memory, without external data: bytes, an open binary file, an onnx.ModelProto.
    target: a device type or backend, or several to fall back through in order. Unlike for
    `Context.target`, which is upstream's, None and [] do not stand for "cpu".
    threads: host threads inside one operator; 0 fits them to the machine.
    device_id: which GPU or NPU.
    config: the path of a configuration file, in MindSpore Lite's format or, by its suffix, TOML,
    JSON or YAML; or a dict of sections, in which values may be numbers, bools and paths too.
    dec_key, dec_mode: for an encrypted file.
    variable_weights: the names of those that Model.update_weights may change, each a weight's or
    that of a node with one.
    progress, cancel: for backends whose compiling takes long.
    Raises what Model.build_from_file raises; where no file is at a path, ModelNotFound, which is a
    FileNotFoundError too. Use the model in a `with` block to free it.
    """
    context = Context()
    targets: Any = [target] if isinstance(target, str) else target
    if targets is None or (isinstance(targets, Sized) and len(targets) == 0):
        raise ValueError(
            f"target must name where to run, as 'cpu' or ['gpu', 'cpu'], but got {target!r}; "
            "leave it out for 'cpu'"
        )
    if not isinstance(targets, list | tuple):
        raise TypeError(
            f"target must be list, but got {type(target)}; or a name, as 'cpu' or 'gpu'"
        )
    context.target = list(targets) if isinstance(targets, tuple) else targets
    context.cpu.thread_num = require_count("threads", threads)
    number = require_count("device_id", device_id)
    context.gpu.device_id = context.ascend.device_id = number
    is_file = isinstance(config, str | os.PathLike)
    config_path = os.fspath(config) if is_file else ""  # type: ignore[arg-type]
    if config_path and not os.path.exists(config_path):  # in the words of this function
        raise ModelNotFound(
            f"engine.load failed, config does not exist! got {config_path!r}", config_path
        )
    sections: dict[str, dict[str, str]] = {}
    if config is not None and not is_file:
        from engine.config.sections import sections_of  # rare

        sections = sections_of("config", config)
    if device_id:
        from engine.config.reader import number_devices

        number_devices(context.target, sections, device_id)
    built = Model()
    file: Any = os.fspath(model) if isinstance(model, os.PathLike) else model
    if not isinstance(file, str) or not os.path.isfile(file):
        from engine.formats.given import absent, given  # rare
        from engine.model.build import located

        file = given(file)
        if isinstance(file, str) and not located(file, context):
            raise absent(file, "engine.load failed, there is no file ")
    options: Any = {
        "context": context,
        "config_path": config_path,
        "config_dict": sections,
        "dec_key": dec_key,
        "dec_mode": dec_mode,
        "variable_weights": variable_weights,
        "progress": progress,
        "cancel": cancel,
    }
    try:
        if isinstance(file, str):
            built.build_from_file(file, ModelType.MINDIR, **options)
        else:
            built.build_from_buffer(file, **options)
    except EngineError as error:  # whoever calls this has called no build_from_file
        reworded(error, own_text(error))
        raise
    return built
