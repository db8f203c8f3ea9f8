"""Prove that a request may be cut along its batch: no part changes what another gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.errors import InputError
from engine.serving.other_axes import proven_elsewhere
from engine.types import ModelSource, TensorSpec
from engine.workers.batch_axes import Given, find_inputs
from engine.workers.protocol import Cuts


def proven(
    open_again: Callable[[], ModelSource],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    given: Given | None,
) -> Cuts | None:
    """Return what is proven of a model of open batch; None where no request would be cut.

    open_again: see `prove_source`. given: axes as the user has them. A model of fixed batch runs
    its own batch, which is one predict of it whatever a request is cut from.
    """
    try:
        axes, is_open = find_inputs(inputs, outputs, given)
    except InputError:  # which the runner raises
        return None
    if not is_open or all(axis is None for axis in axes):
        return None
    try:
        from engine.layouts.batch.source import prove_source  # with the onnx package
    except ImportError:
        return Cuts("to follow the batch through it takes the onnx package; run: pip install onnx")
    names = [spec.name for spec in inputs]
    proof = prove_source(open_again, dict(zip(names, axes)))
    if proof.reason:
        elsewhere = {} if given else proven_elsewhere(open_again, inputs, dict(zip(names, axes)))
        return Cuts(proof.reason, elsewhere=elsewhere)
    return Cuts("", tuple(proof.outputs[spec.name].axis for spec in outputs))
