"""MindIR models: the reader that Model has for them makes them ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.converter.job import Job, Read
from engine.converter.sources.onnx import whole
from engine.formats.collectives import is_collective
from engine.formats.kinds import ENCRYPTED_MINDIR, MINDIR
from engine.types import TensorSpec

if TYPE_CHECKING:
    from onnx import ModelProto

title = "a MindIR model"
kinds = (MINDIR, ENCRYPTED_MINDIR)
suffixes = (".mindir",)


def read(job: Job) -> Read:
    """See engine.converter.sources.read. Encrypted files are decrypted in memory.

    Raises ModelError also for a model that keeps state between predicts: ONNX has no place for it.
    """
    is_encrypted = job.file.kind == ENCRYPTED_MINDIR
    if is_encrypted and job.decrypt_key is None:
        raise job.error(
            "is encrypted; set decrypt_key, and decrypt_mode if it is not AES-GCM (on the command "
            "line: --decrypt-key, --decrypt-mode)"
        )
    job.file.unlock(job.decrypt_key if is_encrypted else None, job.decrypt_mode)
    job.file.look_in(job.config.get("model_file", {}).get("mindir_path"))
    source = job.file()
    shapes = _other_shapes(source.graph.inputs if source.graph else (), job)
    if shapes:  # lowered anew: what MindSpore inferred in the file is for the shapes it has
        job.file.lower_for(shapes)
        source = job.file()
    if source.state:
        raise job.error(
            f"assigns to its parameter {source.state[0].name!r}, and a converted file cannot keep "
            "such state from predict to predict; give the .mindir itself to Model, which does"
        )
    model = whole(source, job)
    return model, _parts(model)


def _other_shapes(specs: Sequence[TensorSpec], job: Job) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes of all inputs if the job changes a fixed axis behind the first, else {}.

    A first axis alone, the batch, is changed and compared by the shape pass.
    """
    shapes: dict[str, tuple[int | None, ...]] = {}
    is_changed = False
    for spec in specs:
        dims = spec.shape or ()
        asked = job.input_shape.get(spec.name, ())
        if len(asked) != len(dims):
            asked = (-1,) * len(dims)  # not named, or an error that the shape pass words
        known = tuple(dim if isinstance(dim, int) else None for dim in dims)
        shapes[spec.name] = tuple(
            dim if size == -1 else size for dim, size in zip(known, asked, strict=True)
        )
        is_changed |= any(
            dim is not None and dim != size for dim, size in [*zip(known, shapes[spec.name])][1:]
        )
    return shapes if is_changed else {}


def _parts(model: ModelProto) -> list[str]:
    """Return a note on a model that is one rank's part of another."""
    nodes = model.graph.node
    op_types = sorted({node.op_type for node in nodes if is_collective(node.op_type, node.domain)})
    if not op_types:
        return []
    return [
        f"the model is one rank's part of a distributed one ({', '.join(op_types)}): the result "
        "runs only beside the other ranks"
    ]
