"""Compile: from TensorRT's network to an engine, with progress and cancel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from engine.errors import BackendUnavailable, Cancelled, ModelError
from engine.types import CompileOptions
from engine_gpu_trt import form, lending, messages, outside, refit, timing
from engine_gpu_trt.engines import Engine, deserialize
from engine_gpu_trt.executable import TrtExecutable
from engine_gpu_trt.layers import layers_of
from engine_gpu_trt.model import TrtModel
from engine_gpu_trt.placement import placement_of
from engine_gpu_trt.profiles import Profile, bounded, shape_profiles


def compile_model(model: TrtModel, options: CompileOptions) -> TrtExecutable:
    """Build the engine of a loaded model; raises what engine_compile may raise."""
    if model.unsupported:
        raise _refused(model)
    if options.cancel is not None:
        options.cancel.check()
    plan = None
    if model.engine is not None:  # compiled before: the executable takes it over
        engine = model.engine
        made = model.form or form.Form(model.inputs, model.outputs, model.names, ())
    else:
        assert model.network is not None, "compile after close"
        profiles = shape_profiles(model.inputs, options.shapes, options.profiles, model.settings)
        engine, plan = _build(model, options, profiles)
        model.engine = engine  # closed with the model until an executable takes it
        made = _form(model, options, engine, profiles)
    if options.save_to is not None and not model.source.is_secret:
        digest = _save(options.save_to, plan, made, engine)
        if not options.variable_weights:
            engine.offer(digest)
    weights = None
    if outside.is_wanted(options):
        weights = lending.place(model.gpu, model.outside, options, model.source.name)
    executable = TrtExecutable(engine, made, options, model.settings, weights)
    model.engine = None
    if options.profile_to is not None and model.source.graph is not None:
        executable.name_layers(model.source.graph)
    if options.variable_weights and model.source.graph is not None:  # an engine file has no names
        executable.allow_updates(options.variable_weights, model.source)
    return executable


def _form(
    model: TrtModel, options: CompileOptions, engine: Engine, profiles: Sequence[Profile]
) -> form.Form:
    graph = model.source.graph
    assert graph is not None
    inputs = [bounded(spec, [profile[spec.name] for profile in profiles]) for spec in model.inputs]
    reason = f"TensorRT {model.trt.__version__} compiled it into the engine{model.how}"
    placement = placement_of(graph, layers_of(graph, engine), options, reason)
    return form.Form(
        tuple(inputs), model.outputs, model.names, placement, model.outside, model.collectives
    )


def _save(folder: Path, plan: Any, made: form.Form, engine: Engine) -> str:
    with engine.gpu as gpu:
        if plan is None:
            plan = engine.engine.serialize()
        return form.write(folder, plan, made, form.made_with(gpu, engine.trt))


def _build(
    model: TrtModel, options: CompileOptions, profiles: Sequence[Profile]
) -> tuple[Engine, Any]:
    """Build an engine. Return it, and the bytes that it is serialised in."""
    trt, gpu, name = model.trt, model.gpu, model.source.name
    mark = messages.mark()
    # Times are of layers by their shapes, and so of a secret too.
    cache_folder = None if model.source.is_secret else options.cache_folder
    with gpu:
        _configure(model)
        if options.profile_to is not None:  # for the names of the nodes in each layer
            model.config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        if options.variable_weights:
            refit.declare(model, options.variable_weights)
        if cache_folder is not None:
            model.timing_cache = timing.attach(cache_folder, gpu, trt, model.config)
        for profile in profiles:
            _add_profile(model, profile, mark)
        monitor = None
        if options.progress is not None or options.cancel is not None:
            monitor = model.config.progress_monitor = _monitor(trt)(options)
        plan = model.builder.build_serialized_network(model.network, model.config)
        if monitor is not None and monitor.error is not None:
            raise monitor.error
        if options.cancel is not None and options.cancel.cancelled:
            raise Cancelled(f"{name}: compiling was cancelled")
        if plan is None:
            heard = messages.since(mark)
            if heard.out_of_memory:
                raise BackendUnavailable(
                    f"{gpu.name}: out of memory while compiling {name}: "
                    f"{gpu.shortage('room to build it')}; narrow the shapes or set "
                    f"workspace_bytes; TensorRT says: {heard}",
                    "gpu_trt",
                )
            raise ModelError(
                f"{name}: TensorRT {trt.__version__} cannot compile it{_shapes(profiles)}: {heard}",
                str(model.source.path or ""),
            )
        if cache_folder is not None and model.timing_cache is not None:
            timing.save(cache_folder, gpu, trt, model.config, model.timing_cache)
        return deserialize(gpu, trt, plan, name), plan


def _configure(model: TrtModel) -> None:
    trt, settings = model.trt, model.settings
    model.config = model.builder.create_builder_config()
    if not settings.tf32:
        # On by default, and 10 bits of mantissa are not what enforce_fp32 promises.
        model.config.clear_flag(trt.BuilderFlag.TF32)
    if settings.workspace_bytes is not None:
        model.config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_bytes)
    model.config.builder_optimization_level = settings.optimization_level
    feature = getattr(trt.PreviewFeature, "MULTIDEVICE_RUNTIME_10_16", None)  # 11 needs none
    if model.collectives and feature is not None:
        model.config.set_preview_feature(feature, True)


def _add_profile(model: TrtModel, profile: Profile, mark: int) -> None:
    """Hand a profile to the builder."""
    model.profiles.append(model.builder.create_optimization_profile())
    try:
        for ours, theirs in model.names.items():
            shapes = profile[ours]
            model.profiles[-1].set_shape(theirs, shapes.lowest, shapes.usual, shapes.highest)
        added = model.config.add_optimization_profile(model.profiles[-1])
    except (ValueError, RuntimeError) as error:  # the first in the docs, the second in fact
        raise _profile_error(model, profile, messages.tidy(str(error))) from error
    if added < 0:
        raise _profile_error(model, profile, messages.since(mark))


def _profile_error(model: TrtModel, profile: Profile, why: str) -> ModelError:
    return ModelError(
        f"{model.source.name}: TensorRT does not take the model{_shapes([profile])}: {why}",
        str(model.source.path or ""),
    )


def _shapes(profiles: Sequence[Profile]) -> str:
    """Describe the shapes that were asked for, for an error: they may be the reason."""
    texts = [
        f"{name!r} {list(ends.lowest)}..{list(ends.highest)}, usually {list(ends.usual)}"
        for profile in profiles
        for name, ends in profile.items()
        if ends.lowest != ends.highest
    ]
    return f" for the shapes {'; '.join(texts)}" if texts else ""


@cache
def _monitor(trt: Any) -> Any:
    """Return the class that reports a build's steps and asks whether to go on."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]  # a class of a module without types
        def __init__(self, options: CompileOptions) -> None:
            trt.IProgressMonitor.__init__(self)
            self._progress = options.progress
            self._cancel = options.cancel
            self._totals: dict[str, int] = {}
            self.error: Exception | None = None

        # TensorRT calls these from threads of its own, and prints what they raise.

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._totals[phase_name] = num_steps
            self._report(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._report(phase_name, step + 1)
            return self.error is None and not (self._cancel is not None and self._cancel.cancelled)

        def phase_finish(self, phase_name: str) -> None:
            self._report(phase_name, self._totals.get(phase_name, 0))
            self._totals.pop(phase_name, None)

        def _report(self, phase: str, done: int) -> None:
            if self._progress is None or self.error is not None:
                return
            try:
                self._progress(phase, done, self._totals.get(phase))
            except Exception as error:
                self.error = error

    return Monitor


def _refused(model: TrtModel) -> ModelError:
    graph = model.source.graph
    assert graph is not None, "only ONNX models have unsupported nodes"
    lines = []
    for index, reason in sorted(model.unsupported.items()):
        node = graph.nodes[index]
        label = f"node {index} {node.name!r}" if node.name else f"node {index}"
        lines.append(f"{label} ({node.op_type}): {reason}")
    more = f"; and {len(lines) - 5} more" if len(lines) > 5 else ""
    return ModelError(
        f"{model.source.name}: TensorRT cannot run {'; '.join(lines[:5])}{more}",
        str(model.source.path or ""),
    )
