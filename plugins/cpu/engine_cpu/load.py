"""Load: from a validated model to an ONNX Runtime session.

ONNX Runtime reads and compiles in one step, so engine_load makes the session and engine_compile
(executable.py) hands it on. Only a model that ONNX Runtime refuses, or runs with kernels that
known_issues.py names, is prepared for it (prepare/), and only that costs more than the session. A
session that is to be kept in compiled form writes it and is opened anew from that (compiled.py);
for a prepared model that is a session of its own, since only then is known what it is prepared as.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from engine.errors import BackendUnavailable, CompiledFormError, ModelError
from engine.host.interrupts import pass_interrupt
from engine.model_bytes import folds_too_much
from engine.types import CompileOptions, GraphInfo, ModelSource, ValueKind
from engine_cpu.layout import PLAIN
from engine_cpu.options import (
    has_workarounds,
    is_batch_invariant,
    raw_entries,
    refused_entries,
    rewrites_mode,
    session_options,
    shares_workspace,
)
from engine_cpu.prepared import Prepared
from engine_cpu.rewrites import candidates
from engine_cpu.risk import Risk, is_plain, may_quantize
from engine_cpu.session import (
    OUT_OF_MEMORY,
    CpuModel,
    give_files,
    graph_of,
    is_out_of_memory,
    session_of,
)


def load_model(source: ModelSource, options: CompileOptions) -> CpuModel:
    """Make a session for `source`, or list the nodes that keep ONNX Runtime from making one.

    Raises ModelError with what ONNX Runtime refused where that is not a matter of nodes.
    """
    if options.cancel is not None:
        options.cancel.check()
    if options.device.id != 0:
        raise BackendUnavailable(
            f"device {str(options.device)!r} is not there: the host is the one device 'cpu:0'",
            "cpu",
        )
    if options.progress is not None:
        options.progress("compile", 0, 1)
    try:
        return _load_in_workspace(source, options)
    except CompiledFormError:
        raise
    except ModelError as error:
        raw = raw_entries(options)
        if raw and _loads_without(raw, source, options):
            reason = str(error).removeprefix(f"{source.name}: ")
            raise refused_entries(raw, reason) from error
        raise


def _loads_without(raw: Iterable[str], source: ModelSource, options: CompileOptions) -> bool:
    """Return whether a model that was refused is accepted without the user's raw entries."""
    others = {key: value for key, value in options.options.items() if key not in raw}
    try:
        loaded = _load_in_workspace(source, replace(options, options=others, save_to=None))
    except ModelError:
        return False
    return loaded.session is not None


def _load_in_workspace(source: ModelSource, options: CompileOptions) -> CpuModel:
    if not shares_workspace(options):
        return _load(source, options)
    from engine_cpu import workspace  # rare

    arena = workspace.arena()
    with workspace.making():
        loaded = _load(source, options)
    loaded.arena = arena
    return loaded


def _load(source: ModelSource, options: CompileOptions) -> CpuModel:
    if source.compiled is not None:
        from engine_cpu.compiled_session import opened

        return opened(source, options, source.compiled)
    carried, unpassable = _odd_values(graph_of(source))
    if unpassable:
        return CpuModel(source, None, unpassable)
    risk = risk_of(source, has_workarounds(options))
    guard = guard_of(source, options)
    is_ranked = not any(
        spec.shape is None and spec.kind is ValueKind.TENSOR for spec in graph_of(source).inputs
    )
    is_plain = not (carried or risk or guard.is_requested) and is_ranked
    folder = None if source.is_secret else options.save_to  # nothing of a secret model is kept
    notes: Mapping[int, str] = {}
    if is_plain:
        rewritten, notes = _load_rewritten(source, options, folder)
        if rewritten is not None:
            return rewritten
    why_not: Exception | None = None
    if folder is not None and is_plain:
        from engine_cpu.compiled_session import saved_and_opened

        own = CpuModel(source, None, rewritten=guard.rewritten)
        own.notes = notes
        saved, why_not = saved_and_opened(own, guard, options, folder)
        if saved is not None:
            return saved
    loaded, prepared = _load_plain(source, options, carried, risk, guard)
    loaded.notes = notes
    if loaded.session is not None and not is_ranked:
        from engine_cpu.prepare.ranks import rank_check

        loaded.ranks = rank_check(source, prepared.data, loaded.inputs)
    if folder is not None and loaded.session is not None and (not is_plain or prepared.data):
        from engine_cpu.compiled_session import saved_and_opened

        saved, why_not = saved_and_opened(loaded, prepared, options, folder)
        if saved is not None:
            return saved
    if why_not is not None and loaded.session is not None:
        _tell_unwritten(source, why_not)
    return loaded


def _load_rewritten(
    source: ModelSource, options: CompileOptions, folder: Path | None
) -> tuple[CpuModel | None, Mapping[int, str]]:
    """Load a model that needs no preparing with its patterns rewritten.

    None where there are none, where that is not faster, and where ONNX Runtime does not take it so;
    then with what placement is to say.
    """
    if not candidates(source, rewrites_mode(options)) or folds_too_much(source):
        return None, {}
    from engine_cpu.rewrites.choice import choose

    try:
        prepared, patterns, notes = choose(source, options)
    except Exception as error:  # onnx's and protobuf's have no common base
        pass_interrupt(error)
        if options.cancel is not None:
            options.cancel.check()
        _tell_unused(source, error)
        return None, {}
    if not prepared.data:
        return None, notes
    loaded = CpuModel(source, None, rewritten=prepared.rewritten, leads=prepared.leads)
    loaded.patterns = patterns
    why_not: Exception | None = None
    if folder is not None:
        from engine_cpu.compiled_session import saved_and_opened

        saved, why_not = saved_and_opened(loaded, prepared, options, folder)
        if saved is not None:
            return saved, {}
    settings = session_options(options)
    try:
        given = give_files(source, settings)
        loaded.session = session_of(given, prepared, settings, options.cancel)
    except ModelError as error:
        if is_out_of_memory(error.__cause__):
            raise
        _tell_unused(source, error)
        return None, {}
    if why_not is not None:
        _tell_unwritten(source, why_not)
    return loaded, {}


def _tell_unused(source: ModelSource, why: Exception) -> None:
    """Tell why a model is not rewritten; no warning, for it may be one that is cut into parts."""
    import logging  # rare

    text = " ".join(str(why).removeprefix(f"{source.name}: ").split())
    logging.getLogger("engine.cpu").info("%s: not rewritten: %s", source.name, text)


def _tell_unwritten(source: ModelSource, why: Exception) -> None:
    """Tell why a model that ONNX Runtime takes has no compiled form. Raises OSError.

    A form that cannot be written, as on a full disk, can be another time: the core builds the model
    without one. Of a form that is of no use the next would be too, and that is a warning.
    """
    reason = str(why).removeprefix(f"{source.name}: ")
    text = f"{source.name}: the compiled form could not be written, and is not kept: {reason}"
    is_refused = isinstance(why, ModelError) and not isinstance(why, CompiledFormError)
    if is_refused or isinstance(why, OSError):  # ONNX Runtime refuses only what it is to write
        raise OSError(text) from why
    import logging  # rare

    logging.getLogger("engine").warning("%s", text)


def _load_plain(
    source: ModelSource,
    options: CompileOptions,
    carried: Sequence[str],
    risk: Risk,
    guard: Prepared,
) -> tuple[CpuModel, Prepared]:
    """Return the loaded model, and what it was prepared as.

    guard: the model as it is, with the nodes that are not to be fused.
    """
    settings = session_options(options)
    source = give_files(source, settings)
    workarounds = has_workarounds(options)
    session = refusal = None
    prepared = guard
    is_prepared = risk is Risk.FATAL or guard.is_requested
    if is_prepared:  # before any session, which computes constants
        prepared = _prepared(source, None, carried, workarounds, guard)
    if prepared.unsupported:
        return CpuModel(source, None, prepared.unsupported), prepared
    try:
        session = session_of(source, prepared, settings, options.cancel)
        if is_prepared or not (carried or risk):
            read = _as_read(source, prepared)
            return CpuModel(source, session, rewritten=prepared.rewritten, read=read), prepared
    except ModelError as error:
        from engine_cpu.errors import is_lack  # rare

        if not isinstance(error.__cause__, Exception) or not is_lack(str(error.__cause__)):
            raise
        refusal = error
    if options.cancel is not None:
        options.cancel.check()
    prepared = _prepared(source, refusal, carried, workarounds, guard)
    if prepared.unsupported:
        return CpuModel(source, None, prepared.unsupported), prepared
    if prepared.data:
        session = session_of(source, prepared, settings, options.cancel)
    read = _as_read(source, prepared)
    return CpuModel(source, session, rewritten=prepared.rewritten, read=read), prepared


def risk_of(source: ModelSource, workarounds: bool = True) -> Risk:
    """Return the risk that a model is; see `prescreen`, which is asked unless it is plain."""
    assert source.graph is not None, "the core reads every ONNX file before a backend does"
    if is_plain(source.graph):
        return Risk.NONE
    from engine_cpu.prescreen import prescreen

    return prescreen(source, workarounds)


def _as_read(source: ModelSource, prepared: Prepared) -> ModelSource:
    if not prepared.data:
        return source
    return replace(source, data=prepared.data, folder=prepared.folder)


def guard_of(source: ModelSource, options: CompileOptions) -> Prepared:
    """Return a model as it is, with what is to be computed otherwise than by its own kernels."""
    guard = Prepared(is_invariant=is_batch_invariant(options))
    if not has_workarounds(options) or not may_quantize(graph_of(source)):
        return guard
    from engine_cpu.quantized import OFF  # rare
    from engine_cpu.quantized import guard_of as look

    if OFF in options.options:  # the user knows better
        return guard
    names, reasons = look(source)
    return guard._replace(unfused=names, rewritten=reasons)


def _prepared(
    source: ModelSource,
    refusal: ModelError | None,
    carried: Sequence[str],
    workarounds: bool,
    guard: Prepared,
) -> Prepared:
    try:
        from engine_cpu.prepare import prepare

        prepared = prepare(source, refusal is None, carried, workarounds, guard)
        return prepared.guarded(guard)
    except ModelError:
        raise
    except Exception as error:  # onnx's and protobuf's have no common base
        pass_interrupt(error)
        if is_out_of_memory(error):
            raise ModelError(f"{source.name}: {OUT_OF_MEMORY}", source.name) from error
        if refusal is not None:
            raise refusal from error
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelError(f"{source.name}: {text}", source.name) from error


def _odd_values(graph: GraphInfo) -> tuple[list[str], dict[int, str]]:
    """Return outputs to be given in a carrier's type, and nodes whose values cannot be passed."""
    specs = (*graph.inputs, *graph.outputs)
    odd = [spec for spec in specs if spec.dtype not in PLAIN]
    if not odd:
        return [], {}
    from engine_cpu.values import carried

    nested = {spec.name: spec for spec in odd if spec.kind is not ValueKind.TENSOR}
    unpassable = {
        node.index: f"{name!r} is {nested[name]}, which onnxruntime takes and gives no values of"
        for node in graph.nodes
        for name in (*node.inputs, *node.outputs)
        if name in nested
    }
    return [spec.name for spec in carried(graph.inputs, graph.outputs)], unpassable
