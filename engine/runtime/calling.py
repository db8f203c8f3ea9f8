"""Calls of a model with options beside its inputs, or with what is no input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import InputError
from engine.options import nearest
from engine.runtime.signature import Signature, known, listed
from engine.tensor.protocols import is_array
from engine.tensor.values import arrays_in
from engine.types import ValueKind

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS = ("outputs", "timeout_s", "cancel")


def call(
    predict: Callable[..., Sequence[Any]],
    signature: Signature,
    arrays: tuple[Any, ...],
    by_name: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the outputs of a model by name; see `Model.__call__`.

    A keyword is an input where the model has one of that name, unless inputs come by place or in
    a dict: then it can only be an option.
    """
    inputs_too = (
        {} if arrays else {name: by_name[name] for name in by_name if name in signature.names}
    )
    others = {name: by_name[name] for name in by_name if name not in inputs_too}
    options = {name: others.pop(name) for name in OPTIONS if name in others}
    inputs: Any = arrays
    if len(arrays) == 1:
        inputs = unpacked(arrays[0], signature)
    if not arrays:
        _refuse_like_option(others, signature)
        inputs = inputs_too | others  # the latter are unknown: predict says so
    elif others:
        raise TypeError(
            f"pass all inputs by place or all by name, not both; {listed([*others])} is none of "
            f"the options {', '.join(OPTIONS)}"
        )
    wanted = _chosen(options.pop("outputs", None), signature)
    results = predict(inputs, **options)
    by_output = {spec.name: value for spec, value in zip(signature.outputs, results)}
    return {name: arrays_in(by_output[name]) for name in wanted}


def _refuse_like_option(names: Iterable[str], signature: Signature) -> None:
    """Raise InputError for a name like an option's that is like no input's."""
    for name in names:
        near = nearest(name, OPTIONS)
        if near and not nearest(name, signature.names):
            raise InputError(
                f"unknown input {name!r}; did you mean the option {near!r}? the model has: "
                f"{listed(signature.names)}",
                name,
            )


def unpacked(argument: Any, signature: Signature) -> Any:
    """Return the inputs that a single argument stands for: itself, or what it holds.

    A mapping holds inputs by name. A list of arrays, one an input, holds the inputs in order; for
    a model of one input it is that input where numpy makes an array of its rank of it.
    """
    if isinstance(argument, Mapping):
        return argument
    if isinstance(argument, list | tuple):
        count = len(signature.names)
        if count != 1:
            return argument
        if len(argument) == 1 and is_array(argument[0]):
            [spec] = signature.inputs
            is_row = spec.shape is not None and len(np.shape(argument[0])) + 1 == len(spec.shape)
            if spec.kind is ValueKind.TENSOR and not is_row:
                return argument
    return (argument,)


def refuse_names(names: object, inputs: object) -> None:
    """Raise TypeError for arguments in the order of onnxruntime's run(names, inputs)."""
    if isinstance(inputs, Mapping) and (names is None or isinstance(names, list | tuple)):
        chosen = f"inputs, outputs={list(names)!r:.60}" if names else "inputs"
        raise TypeError(f"inputs go first: model({chosen})")


def _chosen(names: object, signature: Signature) -> list[str]:
    """Return the names of the outputs that a caller wants, in the caller's order."""
    having = [spec.name for spec in signature.outputs]
    if names is None:
        return having
    chosen = [names] if isinstance(names, str) else names
    if not isinstance(chosen, list | tuple) or not all(isinstance(name, str) for name in chosen):
        raise TypeError(f"outputs must be the names of outputs in a list, but got {names!r:.60}")
    for name in chosen:
        if name not in having:
            raise InputError(f"unknown output {name!r}; {known(name, having)}", name)
    return list(chosen)
