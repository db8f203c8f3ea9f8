"""A first run of a plan: can its model have the shapes that it was built for?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import EngineError, InputError, one_line
from engine.formats.collectives import is_collective
from engine.formats.opened import state_of
from engine.plan.contexts import close
from engine.types import DType, TensorSpec, ValueKind

if TYPE_CHECKING:
    from engine.plan.plan import Plan


def try_run(plan: Plan) -> None:
    """Run a plan once on zeros; the shapes of its inputs are known. Raises InputError.

    Not where a run leaves something behind or waits for others: state, other ranks; nor for
    values that are no tensors.
    """
    graph = plan.source.graph
    inputs = plan.executable.inputs
    if (
        graph is None
        or state_of(plan.source)
        or any(is_collective(node.op_type, node.domain) for node in graph.nodes)
        or any(spec.kind is not ValueKind.TENSOR for spec in inputs)
    ):
        return
    context = plan.executable.open_context()
    try:
        plan.predict(context, list(map(_zeros, inputs)), None, None)
    except EngineError:
        raise
    except Exception as error:  # a backend's own
        raise InputError(one_line(error)) from error
    finally:
        close(context)


def _zeros(spec: TensorSpec) -> np.ndarray[Any, Any]:
    shape = tuple(dim for dim in spec.shape or () if isinstance(dim, int))
    try:
        if spec.dtype is DType.STRING:
            return np.full(shape, "", object)
        return np.zeros(shape, spec.dtype.numpy)
    except (MemoryError, ValueError) as error:
        raise InputError(f"input {spec.name!r}: {one_line(error)}", spec.name) from error
