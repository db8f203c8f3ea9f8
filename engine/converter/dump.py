"""Graphs of a conversion as text, where MSLITE_DUMP_GRAPH_LEVEL=1 asks for them.

MindSpore Lite writes such files, named *.ir, into the current folder, or into that of
MSLITE_DUMP_GRAPH_PATH; in ONNX's own text form here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from engine.converter.job import Job
from engine.errors import one_line

if TYPE_CHECKING:
    from onnx import ModelProto

VARIABLE = "MSLITE_DUMP_GRAPH_LEVEL"
FOLDER_VARIABLE = "MSLITE_DUMP_GRAPH_PATH"


def dump(model: ModelProto, job: Job, stage: str) -> list[str]:
    """Write the graph at one stage of a conversion, without its weights; returns a note on that.

    Nothing unless the variable is 1, and never of a model with a key.
    """
    level = os.environ.get(VARIABLE, "")
    if level in ("", "0"):
        return []
    if job.is_secret:
        return [f"{VARIABLE}={level} has no effect: an encrypted model is written nowhere in clear"]
    from onnx import printer

    from engine.formats.onnx.graphs import light

    folder = Path(os.environ.get(FOLDER_VARIABLE, ""))
    file = folder / f"{job.output_file.stem}_{stage}.ir"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(printer.to_text(light(model)) + "\n", "utf-8", "surrogateescape")
    except (OSError, ValueError) as error:
        return [f"{VARIABLE}={level}: {file} was not written: {one_line(error)}"]
    return [f"{VARIABLE}={level}: the graph is in {file}"]
