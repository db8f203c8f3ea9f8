"""A model's signature: what a caller passes and what a backend gets.

fitting.py holds the first against it, resizing.py fixes its open axes; `sizes.py` is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.config.wording import followed
from engine.errors import InputError
from engine.host.imports import ready
from engine.runtime.descriptions import known_shape
from engine.types import TensorSpec, ValueKind

if TYPE_CHECKING:
    pass


class Signature:
    """The inputs and outputs of a model at one moment: as declared, or as resized since.

    Immutable; shared by threads. dtypes: the inputs' numpy dtypes. shapes: the inputs' shapes
    where every axis is known, else None. is_plain: all inputs and outputs are tensors, as they
    nearly always are. optional: the inputs that a dict by name may leave out. count: how many a
    caller has to name, -1 where that varies. is_open_ended: the shapes of some outputs do not
    follow from the inputs'. declared: the inputs before a resize; () where there was none.
    is_rebuildable: its users may change sizes that the file fixes, by Model.resize.
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        declared: tuple[TensorSpec, ...] = (),
        is_rebuildable: bool = False,
    ) -> None:
        self.is_rebuildable = is_rebuildable
        self.declared = declared
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.names = tuple(spec.name for spec in inputs)
        self.dtypes = tuple(spec.dtype.numpy for spec in inputs)
        self.is_plain = all(spec.kind is ValueKind.TENSOR for spec in (*inputs, *outputs))
        self.optional = {spec.name for spec in inputs if spec.kind is ValueKind.OPTIONAL}
        self.count = -1 if self.optional else len(self.names)
        # Strings are looked at one by one every time, as is what is no tensor: no array of objects
        # is taken at a glance.
        self.quick_dtypes = tuple(
            None if dtype.hasobject or spec.kind is not ValueKind.TENSOR else dtype
            for dtype, spec in zip(self.dtypes, self.inputs)
        )
        self.shapes = tuple(known_shape(spec.shape) for spec in inputs)
        symbols = {dim for spec in inputs for dim in spec.shape or () if isinstance(dim, str)}
        self.is_open_ended = self.is_plain and any(
            spec.shape is None
            or any(dim not in symbols and not isinstance(dim, int) for dim in spec.shape)
            for spec in outputs
        )

    def ordered(self, inputs: Any) -> list[Any]:
        """Return the inputs of one call as a list in the model's order.

        inputs: a list or tuple in that order, a mapping by name, or the array of a model's only
        input. Raises TypeError for anything else, InputError for a wrong count or name.
        """
        if type(inputs) is dict and len(inputs) == len(self.names):
            try:
                return [inputs[name] for name in self.names]
            except KeyError:
                pass
        if isinstance(inputs, Mapping):
            if len(inputs) == len(self.names) and all(map(inputs.__contains__, self.names)):
                return [inputs[name] for name in self.names]
            for name in inputs:
                if name not in self.names:
                    raise InputError(
                        f"unknown input {name!r}; {known(name, self.names)}", str(name)
                    )
            for name in self.names:
                if name not in inputs and name not in self.optional:
                    raise InputError(
                        f"input {name!r} is missing; the model has: {listed(self.names)}", name
                    )
            return [inputs.get(name) for name in self.names]
        if not isinstance(inputs, list | tuple):
            from engine.tensor.protocols import is_array  # rare

            if len(self.names) == 1 and is_array(inputs):
                return [inputs]
            raise TypeError(
                f"inputs must be list or tuple, but got {type(inputs)}. Or a dict by input name; "
                f"the model has: {self._described()}" + "; inputs go first" * (inputs is None)
            )
        if len(inputs) != len(self.names):
            error = InputError(
                f"model input len:{len(self.names)} not equal input len:{len(inputs)}! "
                f"The model has: {self._described()}" + self._miscounted(inputs)
            )
            # MindSpore Lite's Model says the first, its ModelParallelRunner the second.
            raise followed(error, "predict failed!")
        return list(inputs)

    def _miscounted(self, inputs: Sequence[Any]) -> str:
        """Return what to do about another number of inputs; "" where that cannot be told."""
        if any(map(_is_mapping, inputs)):
            return "; pass a dict of inputs alone"
        if len(inputs) > len(self.names) and _are_names(inputs[-1]):
            return "; names of outputs go by keyword: model(inputs, outputs=[...])"
        if len(self.names) == 1 and inputs and all(type(item) is list for item in inputs):
            return "; nested lists are one input in a list: model.predict([x])"
        return ""

    def _described(self) -> str:
        return ", ".join(f"{spec.name!r} {spec}" for spec in self.inputs) or "no inputs"


def quantized(
    specs: tuple[TensorSpec, ...], declared: Sequence[TensorSpec]
) -> tuple[TensorSpec, ...]:
    """Return a backend's description with what the model's file says that integers stand for."""
    known = {spec.name: spec.quantization for spec in declared if spec.quantization is not None}
    if not known:
        return specs
    return tuple(
        replace(spec, quantization=known[spec.name])
        if spec.quantization is None and spec.name in known
        else spec
        for spec in specs
    )


def _is_mapping(item: object) -> bool:
    return isinstance(item, Mapping)


def _are_names(item: object) -> bool:
    return isinstance(item, list | tuple) and all(isinstance(name, str) for name in item)


def listed(names: Sequence[str]) -> str:
    """Return names for a message."""
    return ", ".join(repr(name) for name in names) or "none"


def known(name: object, names: Sequence[str]) -> str:
    """Return what to say of a name that is none of `names`."""
    ready("engine.options")
    from engine.options import nearest  # rare

    near = nearest(name, names) if isinstance(name, str) else ""
    return (
        f"did you mean {near!r}? the model has: {listed(names)}"
        if near
        else (f"the model has: {listed(names)}")
    )
