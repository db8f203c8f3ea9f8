"""Compile: from TensorRT's network to an engine, with progress and cancel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from engine.errors import BackendUnavailable, Cancelled, ModelError
from engine.types import CompileOptions, Placement
from engine_gpu_trt import messages
from engine_gpu_trt.engines import Engine, deserialize
from engine_gpu_trt.executable import TrtExecutable
from engine_gpu_trt.network import TrtModel
from engine_gpu_trt.options import PROVIDERS
from engine_gpu_trt.profiles import Profile, bounded, shape_profiles


def compile_model(model: TrtModel, options: CompileOptions) -> TrtExecutable:
    """Build the engine of a loaded model; raises what engine_compile may raise."""
    if model.unsupported:
        raise _refused(model)
    if options.cancel is not None:
        options.cancel.check()
    if model.engine is not None:  # compiled before: the executable takes it over
        engine, model.engine = model.engine, None
        return TrtExecutable(engine, model.inputs, model.outputs, model.names, ())
    assert model.network is not None, "compile after close"
    profiles = shape_profiles(model.inputs, options.shapes, model.settings)
    engine = _build(model, options, profiles)
    inputs = [bounded(spec, [each[spec.name] for each in profiles]) for spec in model.inputs]
    return TrtExecutable(
        engine, tuple(inputs), model.outputs, model.names, _placement(model, options)
    )


def _build(model: TrtModel, options: CompileOptions, profiles: Sequence[Profile]) -> Engine:
    trt, gpu, name = model.trt, model.gpu, model.source.name
    mark = messages.mark()
    with gpu:
        _configure(model)
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
        return deserialize(gpu, trt, plan, name)


def _configure(model: TrtModel) -> None:
    trt, settings = model.trt, model.settings
    model.config = model.builder.create_builder_config()
    if not settings.tf32:
        # On by default, and 10 bits of mantissa are not what enforce_fp32 promises.
        model.config.clear_flag(trt.BuilderFlag.TF32)
    if settings.workspace_bytes is not None:
        model.config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_bytes)
    if settings.optimization_level is not None:
        model.config.builder_optimization_level = settings.optimization_level


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
    """The shapes that were asked for, for an error: they may be the reason."""
    texts = [
        f"{name!r} {list(each.lowest)}..{list(each.highest)}, usually {list(each.usual)}"
        for profile in profiles
        for name, each in profile.items()
        if each.lowest != each.highest
    ]
    return f" for the shapes {'; '.join(texts)}" if texts else ""


@cache
def _monitor(trt: Any) -> Any:
    """The class that reports a build's steps and asks whether to go on."""

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
        called = f"node {index} {node.name!r}" if node.name else f"node {index}"
        lines.append(f"{called} ({node.op_type}): {reason}")
    more = f"; and {len(lines) - 5} more" if len(lines) > 5 else ""
    return ModelError(
        f"{model.source.name}: TensorRT cannot run {'; '.join(lines[:5])}{more}",
        str(model.source.path or ""),
    )


def _placement(model: TrtModel, options: CompileOptions) -> tuple[Placement, ...]:
    graph = model.source.graph
    assert graph is not None
    reason = f"TensorRT {model.trt.__version__} compiled it into the engine{model.how}"
    return tuple(
        Placement(
            node.index,
            node.name,
            node.op_type,
            "gpu_trt",
            str(options.device),
            PROVIDERS[0],
            reason,
        )
        for node in graph.nodes
    )
