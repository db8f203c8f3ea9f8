"""Explain a built model: its placement, the work of its nodes, and the time of that."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from engine.config.checks import require
from engine.errors import EngineError, ModelError, one_line
from engine.formats.opened import OpenedSource, state_of
from engine.host.interrupts import pass_interrupt
from engine.model import facts
from engine.model.model import Model, model_state
from engine.model.shortcut import load
from engine.report.cache_state import explain as explain_cache
from engine.report.explanation.explanation import Explanation
from engine.report.explanation.found import nbytes_of
from engine.report.explanation.node import ExplainedNode
from engine.report.explanation.roof import Roof, measured
from engine.report.explanation.times import NOT_COMPUTED, timed
from engine.report.explanation.traffic import moved
from engine.report.inspection import file_given
from engine.report.measurement import are_open, generated, ranks_of
from engine.runtime.fitting import values
from engine.types import Dim, DType, GraphInfo, ModelSource, NodeState, TensorSpec
from engine.weights.compile_cache import IS_SECRET, CompileCache
from engine.wings import wing

if TYPE_CHECKING:
    from typing import BinaryIO

    from onnx import ModelProto

    from engine.model.state import ModelState
    from engine.report.explanation.tensors import Tensors
    from engine.report.profiling import Profile
    from engine.typing import DecMode, Inputs


def explain(
    model: Model | str | os.PathLike[str] | bytes | BinaryIO | ModelProto,
    target: str | Sequence[str] = "cpu",
    *,
    inputs: Inputs | None = None,
    profile: bool = False,
    roof: Roof | None = None,
    dec_key: bytes | None = None,
    dec_mode: DecMode = "AES-GCM",
) -> Explanation:
    """Explain a model: for each node where it runs and why, its work, and its least time.

    model: one that is built, or what engine.load takes, to be built for `target`.
    inputs: as for Model.predict: the work is counted for their sizes, None for those that the
    model declares; open ones are chosen so that it runs. profile: also measure each kernel.
    roof: the rates of the processor; None has the host's measured, which takes 0.2 s, once.
    dec_key, dec_mode: for an encrypted file.
    Raises what engine.load and Model.predict raise, ModelError for a compiled form, BackendError
    where `profile` is asked of a backend that cannot tell.
    """
    if roof is not None and not isinstance(roof, Roof):
        raise TypeError(f"roof must be a Roof, but got {type(roof)}.")
    if isinstance(model, Model):
        return explained(model, inputs, profile=profile, roof=roof)
    found, file = file_given(model, dec_key, dec_mode, "engine.explain")
    with load(found, target, dec_key=dec_key, dec_mode=dec_mode) as built:
        return explained(built, inputs, profile=profile, roof=roof, source=file())


def explained(
    model: Model,
    inputs: Inputs | None = None,
    *,
    profile: bool = False,
    roof: Roof | None = None,
    source: ModelSource | None = None,
    sizes: str = "as given",
) -> Explanation:
    """Explain a built model; see `Model.explain`. source: the model as opened, where it is known.
    sizes: where those of `inputs` are from.

    roof: of the processor; None has it measured, where the model runs on the host.
    """
    require("profile", profile, bool)
    state = model_state(model)
    built = state.require_built()
    plan, graph = built.plan, built.plan.source.graph
    if graph is None:
        raise ModelError(
            f"{model.model_path_}: is a compiled form, whose nodes only its backend knows; explain "
            "the model that it was compiled from",
            model.model_path_,
        )
    notes: list[str] = []
    given, origin = _values(model, inputs, notes)
    specs = tuple(model.inputs)
    if given is not None:
        specs = tuple(map(_sized, specs, given))
    measurement: Profile | None = None
    if profile:
        if given is None:
            raise ModelError(f"{model.model_path_}: cannot be measured: {notes[0]}")
        measurement = cast("Profile", model.profile(given))
    tensors = _tensors(model, graph, source, specs, given, notes)
    if roof is None and all(device.type == "cpu" for _, device in plan.parts):
        roof = measured()
    if roof is None:
        notes.append(f"the roof of {plan.device} is not known; give one")
    nodes = _nodes(state, graph, tensors, roof)
    if any(node.op_type == "Constant" and node.state is NodeState.RUNS for node in nodes):
        told = {node.backend for node in nodes if node.state is not NodeState.RUNS}
        silent = sorted({node.backend for node in nodes} - told)
        if silent:
            names = ", ".join(map(repr, silent))
            notes.append(f"backend {names} does not tell which nodes it folds or fuses here")
    nodes, unplaced_s = timed(nodes, graph, tensors, roof, measurement)
    nodes, why = _distinct(nodes)
    memory = facts.memory(state)
    return Explanation(
        model=model.model_path_,
        target=plan.backend.name,
        inputs=specs,
        outputs=tuple(
            (tensors.specs.get(spec.name, spec) if tensors else spec) for spec in model.outputs
        ),
        sizes=sizes if inputs is not None else origin,
        nodes=tuple(nodes),
        why=why,
        passes=plan.source.passes if isinstance(plan.source, OpenedSource) else (),
        batching=_batching(state),
        cache=_cache(state, source),
        memory_bytes={
            "private": memory.private_bytes,
            "shared in this process": memory.shared_bytes,
            "mapped from the cache": memory.mapped_bytes,
        },
        roof=roof,
        predict_s=None if measurement is None else measurement.predict_s,
        kernels_s=None if measurement is None else measurement.kernels_s,
        unplaced_s=unplaced_s,
        rank=plan.rank,
        world_size=plan.world_size,
        notes=tuple(notes),
    )


# ------------------------------------------------------------------------------------- sizes


def _values(model: Model, inputs: Inputs | None, notes: list[str]) -> tuple[list[Any] | None, str]:
    """Return inputs to run the model on, and where their sizes are from; None for none."""
    if inputs is not None:
        built = model_state(model).require_built()
        return values(built.signature, inputs, built.plan.devices), ""
    origin = "chosen" if ranks_of(model) else "chosen so that it runs"
    try:
        return generated(model), origin if are_open(model.inputs) else "as declared"
    except EngineError as error:
        pass_interrupt(error)
        notes.append(f"no sizes of its inputs are known: {one_line(error)}")
        return None, "open"


def _sized(spec: TensorSpec, value: Any) -> TensorSpec:
    """Return an input with the sizes that a value has."""
    tensor = value[0] if isinstance(value, list) and value else value
    shape = getattr(tensor, "shape", None)
    if shape is None:
        return spec
    return replace(spec, shape=tuple(int(size) for size in shape), bounds=())


def _tensors(
    model: Model,
    graph: GraphInfo,
    source: ModelSource | None,
    specs: Sequence[TensorSpec],
    given: Sequence[Any] | None,
    notes: list[str],
) -> Tensors | None:
    """Return what is known of the tensors; None, with a note, where nothing is."""
    try:
        from engine.report.explanation.tensors import tensors_of  # with the onnx package
    except ImportError:
        notes.append("to count the work it takes the onnx package; run: pip install onnx")
        return None
    recipe = model_state(model).recipe
    assert recipe is not None, "it is built"
    try:
        opened = recipe.opened_again() if source is None else source
        sizes: dict[str, Sequence[Dim]] = {spec.name: spec.shape or () for spec in specs}
        known = {
            name: [dim if isinstance(dim, int) else -1 for dim in shape]
            for name, shape in sizes.items()
            if shape
        }

        def observe(names: Sequence[str], kinds: Mapping[str, Any]) -> Mapping[str, Any]:
            from engine.report.explanation.running import shapes_by_running  # rare

            values = dict(zip((spec.name for spec in specs), given or (), strict=False))
            try:
                return shapes_by_running(opened, names, kinds, recipe, values)
            except EngineError as error:
                pass_interrupt(error)
                notes.append(f"some sizes depend on data, and are not known: {one_line(error)}")
                return {}

        can_run = given is not None and not ranks_of(model)
        found = tensors_of(opened, known, observe if can_run else None)
    except ModelError as error:
        pass_interrupt(error)
        notes.append(f"the work of its nodes is not known: {one_line(error)}")
        return None
    if [node.op_type for node in found.nodes] != [node.op_type for node in graph.nodes]:
        notes.append("the work of its nodes is not known: it was built of other nodes")
        return None
    return found


# ------------------------------------------------------------------------------------- nodes


def _nodes(
    state: ModelState, graph: GraphInfo, tensors: Tensors | None, roof: Roof | None
) -> list[ExplainedNode]:
    """Return the nodes with their places and their work, each for itself."""
    plan, recipe = state.require_built().plan, state.recipe
    declared = recipe.weights.specs if recipe is not None and recipe.weights is not None else ()
    segments = {
        index: number
        for number, segment in enumerate(getattr(plan.executable, "segments", ()))
        for index in segment.nodes
    }
    weights = {parameter.name: parameter.nbytes for parameter in graph.parameters}
    weights |= {spec.name: nbytes_of(spec) or 0 for spec in declared}
    updatable = {spec.name for spec in declared}
    nbytes = {**(tensors.nbytes if tensors else {}), **weights}
    inside = None
    if tensors is not None:
        from engine.report.explanation.inner import Inside  # with the onnx package

        inside = Inside(tensors, roof)
    nodes = []
    for node, place in zip(graph.nodes, plan.placement(), strict=True):
        reads = [name for name in node.inputs if name]
        if tensors is not None:
            reads += sorted(tensors.reads[node.index].difference(reads))
        held = tuple(name for name in dict.fromkeys(reads) if name in weights)
        is_computed = place.state not in NOT_COMPUTED
        work = byte_count = None
        if not is_computed:
            work = byte_count = 0
        elif tensors is not None:
            work = tensors.work(node.index)
            if work is not None:
                byte_count = moved(node.op_type, node.inputs, node.outputs, nbytes)
        found = ExplainedNode(
            index=node.index,
            node=node.name,
            op_type=node.op_type,
            domain=node.domain,
            backend=place.backend,
            device=place.device,
            provider=place.provider,
            segment=segments.get(node.index, 0),
            state=place.state,
            fused_into=place.fused_into,
            why=tuple(part for part in place.reason.split("; ") if part),
            reads=tuple(dict.fromkeys(reads)),
            outputs=tuple(_spec(tensors, name) for name in node.outputs if name),
            weights=held,
            weights_bytes=sum(weights[name] for name in held),
            updatable=tuple(name for name in held if name in updatable),
            flops=work,
            moved_bytes=byte_count,
        )
        if work is None and inside is not None and tensors is not None:
            found = inside.seen(found, tensors)
        nodes.append(found)
    return nodes


def _spec(tensors: Tensors | None, name: str) -> TensorSpec:
    return TensorSpec(name, DType.FLOAT32, None) if tensors is None else tensors.spec(name)


def _distinct(nodes: Sequence[ExplainedNode]) -> tuple[list[ExplainedNode], dict[str, str]]:
    """Return the nodes without the reasons that all of a backend have, and these by backend."""
    common: dict[str, set[str]] = {}
    for node in nodes:
        common[node.backend] = common.get(node.backend, {*node.why}) & {*node.why}
    order = {
        node.backend: "; ".join(part for part in node.why if part in common[node.backend])
        for node in nodes
    }
    kept = [
        replace(node, why=tuple(part for part in node.why if part not in common[node.backend]))
        for node in nodes
    ]
    return kept, order


# ------------------------------------------------------------------------------ the whole model


def _batching(state: ModelState) -> str:
    """Return why requests cannot share a run; "" where it is proven that they can."""
    built, recipe = state.require_built(), state.recipe
    assert recipe is not None, "it is built"
    if state_of(built.plan.source):
        return "it keeps state from one predict to the next"
    signature = built.signature
    reason: str = wing("why_not_batched")(recipe.opened_again, signature.inputs, signature.outputs)
    return reason


def _cache(state: ModelState, source: ModelSource | None) -> str:
    """Return what the compile cache has of the model."""
    recipe, plan = state.recipe, state.require_built().plan
    assert recipe is not None, "it is built"
    if plan.source.is_secret:
        return IS_SECRET
    from engine.backends import find_target
    from engine.plan.options import BuildOptions

    try:
        opened = source or recipe.opened_again()
        options = BuildOptions(recipe.context, recipe.config)
        target = find_target(plan.backend.name)
        compile_options = options.of(plan.backend, target, opened)
        found = explain_cache(CompileCache.of(recipe.config), plan.backend, opened, compile_options)
    except (EngineError, ValueError) as error:
        pass_interrupt(error)
        return f"not known: {one_line(error)}"
    return found.reason
