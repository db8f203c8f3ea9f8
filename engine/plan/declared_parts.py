"""Parts of a model, one for each that the executors of its conversion need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.config.declared import KEY
from engine.errors import InputError, ModelError

if TYPE_CHECKING:
    from engine.config.declared import Executors
    from engine.formats.opened import OpenedSource
    from engine.plan.division import Division


def declared_parts(
    source: OpenedSource, declared: Executors
) -> tuple[Division, list[OpenedSource]]:
    """Divide a model as its conversion has declared; return the parts' models in order.

    Raises ModelError where the model has no such values, or nobody knows the type of one.
    """
    try:
        from engine.formats.onnx.infer import types_of
        from engine.plan.extract import Whole, fixed_nodes
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "onnx":
            raise
        raise ModelError(
            f"{source.name}: dividing it for its executors needs the onnx package; run: pip "
            "install onnx",
            source.name,
        ) from error
    from engine.plan.division import divide

    whole = Whole(source)
    kept = [entry for entry in whole.proto.metadata_props if entry.key != KEY]
    del whole.proto.metadata_props[:]
    whole.proto.metadata_props.extend(kept)
    try:
        division = divide(whole.graph, fixed_nodes(whole.proto, whole.graph), declared.blocks)
    except InputError as error:
        raise ModelError(
            f"{source.name}: the executors in its metadata do not fit the model: {error}; convert "
            "it again",
            source.name,
        ) from error
    names = {name for part in division.parts for name in (*part.inputs, *part.outputs)}
    types = types_of(whole.proto, names, guess=True)
    if unknown := sorted(names - types.keys()):
        raise ModelError(
            f"{source.name}: the type of {unknown[0]!r}, which one part of the model gives to "
            "another, cannot be inferred; convert it again without [SplitGraph]",
            source.name,
        )
    return division, [whole.part(part, types) for part in division.parts]
