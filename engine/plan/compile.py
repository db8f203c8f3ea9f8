"""One backend's work on one model: load it and compile it, with no compiled form kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from engine.backends import Backend, warn_once
from engine.backends.attribution import attribute_errors_to
from engine.errors import CompiledFormError
from engine.formats.opened import check_unchanged
from engine.host.interrupts import raised_by_handler
from engine.plan.contexts import ContextPool, close
from engine.plan.plan import Candidate, Compiled, CompiledForms, Opener, Plan
from engine.plan.preparing import prepare_built
from engine.types import (
    Capability,
    CompileOptions,
    Device,
    Dim,
    Executable,
    LoadedModel,
    ModelSource,
    ShapeRange,
    TensorSpec,
)
from engine.wings import wing


def compile_whole(candidate: Candidate, source: ModelSource) -> tuple[Plan | None, dict[int, str]]:
    """Return the plan of a model that one backend runs whole; None where it cannot run all nodes.

    Returns these too, by index, each with the backend's reason. `source.compiled` and
    `options.save_to` are the caller's wish; a compiled form that is of no use is not an error.
    """
    backend, options = candidate.backend, candidate.options
    has_memory = not backend.lacks(Capability.DEVICE_BUFFERS, options.device)
    entries: list[str] = []
    if source.graph is None:
        executable, unsupported = compile_all(
            backend,
            source,
            options,
            look=lambda loaded: entries.extend(getattr(loaded, "entries", ())),
        )
        if options.shapes and executable is not None:
            _warn_of_other_sizes(source.name, executable.inputs, options.shapes)
    else:
        forms = candidate.forms or NOWHERE
        executable, unsupported = forms.compiled(backend, source, options)
    if executable is None:
        return None, unsupported
    # The file's bytes are the backend's business now: a model does not hold them twice.
    source = replace(source, data=None, files={})
    plan = Plan(
        backend,
        source,
        executable,
        backend.predict,
        ContextPool(Opener(backend, executable)),
        options.device,
        parts=tuple((backend, device) for device in options.devices or (options.device,)),
        devices=(options.device,) if has_memory else (),
        entries=tuple(entries),
    )
    return plan, {}


def _warn_of_other_sizes(
    name: str, inputs: Sequence[TensorSpec], asked: Mapping[str, ShapeRange]
) -> None:
    """Log a warning, once, where the settings ask for other sizes than a compiled model has.

    name: the model's. inputs: what it has. asked: `CompileOptions.shapes`.
    """
    known = {spec.name: spec for spec in inputs}
    for input_name, sizes in asked.items():
        spec = known.get(input_name)
        if spec is not None and _has(spec, sizes):
            continue
        got = "has no such input" if spec is None else f"has {spec}"
        warn_once(
            f"{name}: was compiled before it was loaded, so that input_shape, dynamic_dims and "
            f"opt_dims do not change its sizes: they name input {input_name!r}, and it {got}; "
            "compile the original model for other sizes, or leave them out"
        )


def _has(spec: TensorSpec, sizes: ShapeRange) -> bool:
    if spec.shape is None:
        return True
    return len(spec.shape) == len(sizes.lowest) and all(
        map(_is_same, spec.shape, sizes.lowest, sizes.highest)
    )


def _is_same(dim: Dim, lowest: int, highest: int) -> bool:
    if lowest == 0:  # nothing was said of it
        return True
    return dim == lowest == highest if isinstance(dim, int) else lowest != highest


class _Nowhere(CompiledForms):
    """A place in which nothing is kept."""

    def compiled(
        self,
        backend: Backend,
        source: ModelSource,
        options: CompileOptions,
        loaded: LoadedModel | None = None,
    ) -> Compiled:
        """Compile a model; without its compiled form if that is of no use."""
        try:
            return compile_all(backend, source, options, loaded)
        except CompiledFormError as error:
            if source.compiled is None or raised_by_handler(error):
                raise
            import logging  # rare

            logging.getLogger("engine").warning(
                "%s: its compiled form in %s is not used, and it is compiled anew: %s",
                source.name, source.compiled, error,
            )  # fmt: skip
        return compile_all(backend, replace(source, compiled=None), options)

    def identified(self, source: ModelSource) -> ModelSource:
        return source


NOWHERE: CompiledForms = _Nowhere()


def compile_all(
    backend: Backend,
    source: ModelSource,
    options: CompileOptions,
    loaded: LoadedModel | None = None,
    *,
    look: Callable[[LoadedModel], object] | None = None,
) -> Compiled:
    """Load and compile a model; without an executable, the nodes that the backend cannot run.

    loaded: the model as the backend has read it already; the caller closes it. look: is called
    with the model that is loaded here.
    """
    if loaded is not None:
        return compile_loaded(backend, loaded, options), {}
    loaded, unsupported = load(backend, source, options)
    with ExitStack() as on_failure:
        with ExitStack() as closing:
            closing.callback(close, loaded)
            if look is not None:
                look(loaded)
            if unsupported:
                return None, unsupported
            executable = compile_loaded(backend, loaded, options)
            on_failure.callback(close, executable)  # an interrupt while the model is closed
            check_unchanged(source)  # which some backends read only now
        on_failure.pop_all()
    return executable, {}


def load(
    backend: Backend, source: ModelSource, options: CompileOptions
) -> tuple[LoadedModel, dict[int, str]]:
    """Return the model as the backend reads it, for the caller to close, and what it cannot run."""
    if source.files and backend.lacks(Capability.FILES_IN_MEMORY, options.device):
        from engine.formats.onnx.inline import inlined  # rare

        source = inlined(source)
    with attribute_errors_to(backend, "engine_load"):
        loaded = backend.load(source, options)
        try:
            check_unchanged(source)
            unsupported = dict(loaded.unsupported)
        except BaseException:
            close(loaded)
            raise
    try:
        return loaded, {**_of_other_types(backend, source, options.device), **unsupported}
    except BaseException:
        close(loaded)
        raise


def _of_other_types(backend: Backend, source: ModelSource, device: Device) -> dict[int, str]:
    """Return the nodes of element types that a device does not have, if its backend says which.

    A compiled form has none: it was made of a model that the backend took whole.
    """
    if source.graph is None or source.compiled is not None:
        return {}
    info = backend.present.get(device)
    if info is None or not info.dtypes:
        return {}
    found: dict[int, str] = wing("refused_by_type")(backend, device, source)
    return found


def compile_loaded(backend: Backend, loaded: LoadedModel, options: CompileOptions) -> Executable:
    """Return the executable of a loaded model, for the caller to close."""
    with attribute_errors_to(backend, "engine_compile"):
        executable = backend.compile(loaded, options)
        try:
            _ = (*executable.inputs, *executable.outputs)
            prepare_built(backend, executable, options)
        except BaseException:
            close(executable)
            raise
    return executable
