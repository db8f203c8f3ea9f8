"""onnx's own backend suite, run on an installed backend: `python -m engine_testing.onnx_suite cpu`.

    from engine_testing.onnx_suite import Score, load_cases, run

    score = Score("mine", list(run("mine", load_cases())))
    print(score.operators.counts, score.light.counts)

Each test is built and run through `engine.Model` in a worker process, so a crash or a hang is that
test's alone, and all that comes out is compared: number, kinds, dtypes, shapes and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import onnx

from engine.backends import BackendState, open_backend
from engine.backends.isolation.probe import probe
from engine.errors import BackendUnavailable, InputError, ModelError, one_line
from engine_testing.onnx_backend import backend_for
from engine_testing.onnx_suite.cases import Case, load_cases
from engine_testing.onnx_suite.compare import Difference, compare
from engine_testing.onnx_suite.pool import Died, each
from engine_testing.onnx_suite.score import FAULTS, Result, Score, Status

__all__ = ["FAULTS", "Case", "Result", "Score", "Status", "load_cases", "run", "run_case"]

Config = Mapping[str, Mapping[str, str]]


def run(
    backend: str,
    cases: Sequence[Case],
    *,
    config: Config | None = None,
    beside: Sequence[str] = (),
    workers: int = 2,
    limit_s: float = 120.0,
) -> Iterator[Result]:
    """Run tests on an installed backend; yields their results in the order in which they end.

    config: sections of options for every model. beside: targets that run what the backend does not.
    workers: processes at once. limit_s: seconds that
    one test may take: far more than any needs, so that only a hang is stopped.
    Raises BackendUnavailable where the backend cannot be had.
    """
    found = probe(backend)
    if found.state is not BackendState.READY:
        raise BackendUnavailable(str(found), backend)
    one = partial(run_case, backend, config=config, beside=tuple(beside))
    for case, answer in each(one, cases, workers=workers, limit_s=limit_s):
        if isinstance(answer, Died):
            yield Result(name=case.name, kind=case.kind, status=Status.DIED, reason=str(answer))
        else:
            yield answer


def run_case(
    backend: str, case: Case, config: Config | None = None, beside: Sequence[str] = ()
) -> Result:
    """Run one test in this process."""
    nodes: dict[str, tuple[str, ...]] = {}
    error = 0.0
    status, reason = Status.PASSED, ""
    if case.is_random:
        status, reason = Status.RANDOM, "its values are drawn at random"
    try:
        device = open_backend(backend).info.device_types[0]
        model = onnx.load_model_from_string(case.model)
        built = backend_for(backend, config, beside).prepare(model, device)
        with built.model:
            for place in built.model.placement:
                nodes[place.backend] = (*nodes.get(place.backend, ()), place.op_type)
            names = [spec.name for spec in built.model.outputs]
            for inputs, wanted in case.runs:
                worst = compare(
                    built.run(inputs), wanted, names,
                    rtol=case.rtol, atol=case.atol, values=not case.is_random,
                )  # fmt: skip
                error = max(error, worst)
    except Difference as difference:
        status, reason = Status.WRONG, str(difference)
    except Exception as raised:  # whatever a backend raises
        status = Status.REFUSED if _is_refusal(raised) else Status.FAILED
        reason = one_line(raised)
    return Result(
        name=case.name, kind=case.kind, status=status, reason=reason, error=error, nodes=nodes
    )


def _is_refusal(error: Exception) -> bool:
    """Return whether an error is about the model or its data, and says why it is refused."""
    at_fault = isinstance(error, ModelError) and error.at_fault
    return isinstance(error, ModelError | InputError) and not at_fault
