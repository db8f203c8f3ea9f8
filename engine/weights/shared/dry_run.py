"""Build a model and run it in a process of its own, to see what its activations take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import ModelError, one_line
from engine.host.interrupts import pass_interrupt
from engine.plan.open_sizes import described, first_that_runs, fitting_shapes
from engine.types import DType, TensorSpec, ValueKind

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from engine.context import Context
    from engine.plan.plan import Plan

_ROLLUP = "/proc/self/smaps_rollup"


def workspace_bytes(path: str, context: Context) -> int:
    """Return what a model takes beyond its weights when it runs on zeros; open axes are small.

    As its backend reports it, else what its process grows by. 0 where neither tells, or where it
    does not run on that, which is logged. Raises what building it raises, and ModelError where
    that ends the process.
    """
    from engine.host.worker import Ended, Worker

    with Worker("engine.weights.shared.dry_run:serve", (os.path.abspath(path), context)) as worker:
        try:
            answer = worker.receive()
        except Ended as end:
            raise ModelError(f"{path}: the process of its dry run {end}", path) from None
    if isinstance(answer, Exception):
        raise answer
    needed, problem = answer
    if problem:
        import logging

        logging.getLogger("engine").warning("%s: its workspace is not known: %s", path, problem)
    return int(needed)


def serve(request: tuple[str, Context], connection: Connection) -> int:
    """Measure one model, for `workspace_bytes`: send the size and a problem, or an error."""
    from engine.formats import ModelFile
    from engine.plan.build import build_plan
    from engine.plan.options import BuildOptions
    from engine.plan.targets import Targets

    path, context = request
    try:
        targets = Targets(BuildOptions(context, {}))
        plan = build_plan(ModelFile(path)(targets.suffixes), targets)
        answer: object = _measured(plan)
    except Exception as error:
        answer = error
    connection.send(answer)
    return 0


def _measured(plan: Plan) -> tuple[int, str]:
    specs = plan.executable.inputs
    if any(spec.kind is not ValueKind.TENSOR or spec.shape is None for spec in specs):
        return 0, "it takes inputs of other kinds than tensors of a known rank"
    lease = plan.pool.borrow()
    before = _anonymous_bytes()

    def run(shapes: Mapping[str, tuple[int, ...]]) -> None:
        inputs = [_zeros(spec, shapes[spec.name]) for spec in specs]
        for _ in range(2):  # a runtime plans its memory in the first run, and uses it in the next
            plan.predict(lease.context, inputs, None, None)

    try:
        first_that_runs(
            fitting_shapes(specs), run, partial(described, specs), "", misfits=(Exception,)
        )
    except Exception as error:
        pass_interrupt(error)
        return 0, f"on zeros it fails: {one_line(error)}"
    told = sum(report.workspace_bytes for _, _, report in plan.memory())
    return told or max(0, _anonymous_bytes() - before), ""


def _zeros(spec: TensorSpec, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if spec.dtype is DType.STRING:
        return np.full(shape, "", object)
    return np.zeros(shape, spec.dtype.numpy)


def _anonymous_bytes() -> int:
    """Return what memory this process has that is in no file; 0 where the system does not say."""
    try:
        with open(_ROLLUP, encoding="ascii") as lines:
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonym"))
    except (OSError, StopIteration):
        return 0
