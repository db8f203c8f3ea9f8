"""The compiled form on disk: an .om file, and what a warm load checks it with."""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import CompiledFormError
from engine.types import CompileOptions, GraphInfo, ShapeRange
from engine_ascend_ge import devices, external, options, runtime
from engine_ascend_ge.om import Om
from engine_ascend_ge.shapes import Shapes

_MODEL = "model.om"
_NOTES = "model.json"
_FILES = ("insert_op_conf", "modify_mixlist", "customize_dtypes")  # flags that name a file
_FORM = 2  # of the notes


def key(wish: CompileOptions, plugin_version: str) -> Mapping[str, str]:
    """Return all that an .om file depends on beside the model; engine_compiled_key says more.

    The driver is not among it: an .om is made without one, and loads with any that its CANN has.
    """
    settings = options.read(wish)
    folder = devices.home()
    acl = runtime.start()
    version = acl.get_version()
    fusion = settings.flags.get("fusion_switch_file", "")
    # Where ATC keeps its kernels changes nothing but the time it takes.
    flags = {
        name: value
        for name, value in sorted(settings.flags.items())
        if not name.startswith("op_compiler_cache")
    }
    return {
        "plugin": plugin_version,
        "CANN": devices.toolkit_version(folder) if folder is not None else "",
        "ACL": ".".join(map(str, version[:3])),
        "atc": settings.atc,
        "SoC": settings.soc_version or soc_name(acl),
        "flags": " ".join(f"--{name}={value}" for name, value in flags.items()),
        "fusion switches": _digest(Path(fusion)) if fusion else "",
        "flags' files": " ".join(
            f"{name}:{_digest(Path(flags[name]))}" for name in _FILES if name in flags
        ),
        "shapes": _text(wish.shapes),
        "profiles": "; ".join(map(_text, wish.profiles)),
        "weights": "outside" if external.is_wanted(wish) else "",
    }


def soc_name(acl: Any) -> str:
    """Return the SoC of this machine's devices, "" where CANN does not say it."""
    return acl.get_soc_name() or ""


def write(made: Path, folder: Path, graph: GraphInfo, shapes: Shapes) -> Path:
    """Move an .om file that ATC has made into `folder`, with notes; return where it is then."""
    model = folder / _MODEL
    shutil.move(made, model)
    outside = external.files_of(made.parent)
    for name, path in outside.items():
        (folder / external.FOLDER).mkdir(exist_ok=True)
        shutil.move(path, folder / external.FOLDER / name)
    notes = {
        "form": _FORM,
        "nbytes": model.stat().st_size,
        "crc32": _checksum(model),
        "shapes": {name: list(axes) for name, axes in shapes.axes.items()},
        "gears": [list(gear) for gear in shapes.gears],
        "weights": {name: path.stat().st_size for name, path in external.files_of(folder).items()},
        **_signature(graph),
    }
    (folder / _NOTES).write_text(json.dumps(notes, indent=1))
    return model


def read(folder: Path, graph: GraphInfo, name: str) -> tuple[Om, Shapes]:
    """Open what `write` left in `folder`.

    graph: of the model; the form is that of another one where its inputs or outputs differ.
    Raises CompiledFormError for anything that is not as it was.
    """
    model = folder / _MODEL
    try:
        notes: dict[str, Any] = json.loads((folder / _NOTES).read_bytes())
        nbytes = model.stat().st_size
    except (OSError, ValueError) as error:
        raise CompiledFormError(
            f"{name}: the compiled form in {folder} cannot be read: {error}", name
        ) from error
    if not isinstance(notes, dict) or notes.get("form") != _FORM:
        raise _damaged(folder, name, f"{_NOTES} is not of form {_FORM}")
    signature = json.loads(json.dumps(_signature(graph)))
    for what, wanted in signature.items():
        if notes.get(what) != wanted:
            raise _damaged(folder, name, f"it has the {what} {notes.get(what)}, expected {wanted}")
    if nbytes != notes.get("nbytes"):
        raise _damaged(folder, name, f"{_MODEL} has {nbytes} bytes, expected {notes.get('nbytes')}")
    if _checksum(model) != notes.get("crc32"):
        raise _damaged(folder, name, f"{_MODEL} has another checksum than it was written with")
    outside = {name: path.stat().st_size for name, path in external.files_of(folder).items()}
    if outside != notes.get("weights"):
        raise _damaged(folder, name, "weight files are missing or have another size")
    try:
        shapes = Shapes(
            {
                input_name: tuple(
                    axis if isinstance(axis, int) else (axis[0], axis[1]) for axis in axes
                )
                for input_name, axes in notes["shapes"].items()
            },
            tuple(tuple(gear) for gear in notes["gears"]),
        )
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise _damaged(folder, name, f"{_NOTES} has no shapes that can be read") from error
    return Om(model, name), shapes


def _signature(graph: GraphInfo) -> dict[str, Any]:
    """Return the inputs and outputs of a model, as the notes have them."""
    return {
        "inputs": [[spec.name, str(spec)] for spec in graph.inputs],
        "outputs": [[spec.name, str(spec)] for spec in graph.outputs],
        "nodes": len(graph.nodes),
    }


def _damaged(folder: Path, name: str, why: str) -> CompiledFormError:
    return CompiledFormError(f"{name}: the compiled form in {folder} is of no use: {why}", name)


def _checksum(path: Path) -> int:
    """Return a checksum that finds damage; against malice the folder's permissions help."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "unreadable"  # ATC says it better when it compiles


def _text(shapes: Mapping[str, ShapeRange]) -> str:
    return "; ".join(
        f"{name}: {list(given.lowest)} {list(given.usual)} {list(given.highest)}"
        for name, given in sorted(shapes.items())
    )
