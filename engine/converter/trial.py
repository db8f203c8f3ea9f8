"""The trial run: run a converted model once before it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.config.wording import own_text
from engine.converter.job import Job
from engine.converter.sample_inputs import ones
from engine.errors import BackendError, InputError, ModelError, ModelStateError
from engine.formats import ModelFile
from engine.plan.disagreement import sizes_and_disagreement
from engine.plan.open_sizes import first_that_runs, fitting_shapes
from engine.types import TensorSpec, ValueKind


def run(file: ModelFile, job: Job) -> dict[str, Any]:
    """Run a model once on the cpu backend, its inputs all ones; returns the outputs by name.

    Axes that the model leaves open get sizes that fit together. Raises ModelError where it does not
    run, BackendError where there is no such backend, Cancelled.
    """
    from engine.runtime.extensions import in_trial

    return in_trial(lambda: _run(file, job))


def _run(file: ModelFile, job: Job) -> dict[str, Any]:
    from engine.context import Context
    from engine.model.build import from_model_file
    from engine.model.model import Model, model_state
    from engine.tensor.values import arrays_in
    from engine.weights.compile_cache import UNCACHED

    with Model() as built:
        try:
            state = model_state(built)
            from_model_file(state, file, Context(), UNCACHED, job.progress, job.cancel)
            inputs = built.inputs
            _, results = first_that_runs(
                fitting_shapes(inputs),
                lambda shapes: built.predict([_ones(spec, shapes) for spec in inputs]),
                lambda shapes: sizes_and_disagreement(file(), inputs, shapes),
                "convert it without infer, or with input_shape",
            )
        except (ModelError, InputError, ModelStateError) as error:
            text = own_text(error)
            if file.path is not None:  # a file aside, which the user does not know
                text = text.replace(file.name, str(job.output_file))
            raise ModelError(
                f"the result does not run: {text}; {str(job.output_file)!r} was not written"
            ) from error
        except BackendError as error:
            error.args = (f"infer needs a backend: {error}",)
            raise
        names = [spec.name for spec in built.outputs]
        return dict(zip(names, map(arrays_in, results), strict=True))


def _ones(spec: TensorSpec, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    if spec.kind is ValueKind.OPTIONAL:
        return None
    if spec.shape is None or spec.kind is ValueKind.MAP:
        raise InputError(f"input {spec.name!r} is {spec}, and nothing can stand for it")
    array = ones(spec.dtype, shapes[spec.name])
    return [array] if spec.kind is ValueKind.SEQUENCE else array
