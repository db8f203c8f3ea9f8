"""Load: from a validated model to an ONNX Runtime session.

ONNX Runtime reads and compiles in one step, so engine_load makes the session and engine_compile
(executable.py) hands it on. Only a model that ONNX Runtime refuses, or runs with kernels that
known_issues.py names, is prepared for it (prepare/), and only that costs more than the session. A
session that is to be kept in compiled form writes it and is opened anew from that (compiled.py);
for a prepared model that is a session of its own, since only then is known what it is prepared as.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime as ort

from engine.errors import BackendUnavailable, CompiledFormError, ModelError
from engine.host.interrupts import raised_by_handler
from engine.model_bytes import folds_too_much
from engine.types import (
    CancelToken,
    CompileOptions,
    GraphInfo,
    ModelSource,
    TensorSpec,
    ValueKind,
)
from engine_cpu import thread_pool
from engine_cpu.options import (
    has_workarounds,
    is_batch_invariant,
    raw_entries,
    refused_entries,
    session_options,
    shares_workspace,
)
from engine_cpu.prepared import DISABLED, Prepared
from engine_cpu.run import PLAIN
from engine_cpu.suspicion import Suspicion, may_quantize, suspicion_of

if TYPE_CHECKING:
    from engine_cpu.compiled import CompiledForm
    from engine_cpu.prepare.ranks import RankCheck
    from engine_cpu.workspace import Arena

_FOLDER = "session.model_external_initializers_file_folder_path"
_GIVE_FILES = "add_external_initializers_from_files_in_memory"
CANCELS_LOAD = "set_load_cancellation_flag"
PROVIDERS = ["CPUExecutionProvider"]
# What ONNX Runtime says of a sound model that an optimisation of its own has spoiled, and the
# entries that leave that out.
_SPOILED: Mapping[str, Mapping[str, str]] = {
    # From 1.28 on it writes the type of an int8 QuantizeLinear that it moves into the node, and
    # then makes its zero point uint8 (microsoft/onnxruntime#25526).
    "output_dtype INT8 does not match y_zero_point type UINT8": {
        "session.qdqisint8allowed": "1",
    },
    # A value that is scaled and multiplied, both directly and scaled once more (like #24341); the
    # others take values away that they still read (#31147).
    "is not a graph input, initializer, or output of a previous node": {
        DISABLED: "MatMulScaleFusion;LayerNormFusion;SimplifiedLayerNormFusion",
    },
    # Its rules for shapes are stricter than its kernels, and see the constants that it has folded:
    # Range of tensors with one element and an axis. What breaks a rule unfolded is refused again.
    "[ShapeInferenceError]": {DISABLED: "ConstantFolding"},
}
_OUT_OF_MEMORY = "out of memory while compiling"

if os.environ.get("ORT_DISABLE_TELEMETRY") != "0":
    ort.disable_telemetry_events()  # for a process that imported onnxruntime before this backend


class CpuModel:
    """A model and, where ONNX Runtime can run all of it, the session made for it.

    unsupported: the nodes that it cannot run, and why; then there is no session.
    rewritten: nodes that are computed otherwise than by a kernel of their own, and how.
    read: the model as ONNX Runtime has read it, where that is not as it is.
    form: the compiled form that the session was opened from.
    ranks: checks inputs of no declared rank.
    arena: what its session shares with others, to be held as long as that lives.
    """

    arena: Arena | None = None

    def __init__(
        self,
        source: ModelSource,
        session: ort.InferenceSession | None,
        unsupported: Mapping[int, str] | None = None,
        rewritten: Mapping[int, str] | None = None,
        form: CompiledForm | None = None,
        ranks: RankCheck | None = None,
        read: ModelSource | None = None,
    ) -> None:
        self.source = source
        self.read = read or source
        self.session = session
        self.form = form
        self.ranks = ranks
        self.unsupported = unsupported or {}
        self.rewritten = rewritten or {}

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return them as the file declares them."""
        return graph_of(self.source).inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Return them as the file declares them."""
        return graph_of(self.source).outputs

    def close(self) -> None:
        """Let the session go; an executable that was made of it keeps it."""
        self.session = None


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
    suspicion = suspicion_of(source, has_workarounds(options))
    guard = guard_of(source, options)
    is_ranked = not any(
        spec.shape is None and spec.kind is ValueKind.TENSOR for spec in graph_of(source).inputs
    )
    is_plain = not (carried or suspicion or guard.is_requested) and is_ranked
    folder = None if source.is_secret else options.save_to  # nothing of a secret model is kept
    why_not: Exception | None = None
    if folder is not None and is_plain:
        from engine_cpu.compiled_session import saved_and_opened

        saved, why_not = saved_and_opened(
            CpuModel(source, None, rewritten=guard.rewritten), guard, options, folder
        )
        if saved is not None:
            return saved
    loaded, prepared = _load_plain(source, options, carried, suspicion, guard)
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
    suspicion: Suspicion,
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
    is_prepared = suspicion is Suspicion.FATAL or guard.is_requested
    if is_prepared:  # before any session, which computes constants
        prepared = _prepared(source, None, carried, workarounds, guard)
    if prepared.unsupported:
        return CpuModel(source, None, prepared.unsupported), prepared
    try:
        session = session_of(source, prepared, settings, options.cancel)
        if is_prepared or not (carried or suspicion):
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


def session_of(
    source: ModelSource,
    prepared: Prepared,
    settings: ort.SessionOptions,
    cancel: CancelToken | None,
) -> ort.InferenceSession:
    """Make a session of a model as it was prepared, or as it is."""
    if not prepared.data:
        return make_session(source, *_model_of(source, settings), cancel)
    if source.data is None:
        look_in(prepared.folder, settings)
    return make_session(source, prepared.data, settings, cancel)


def _model_of(
    source: ModelSource, settings: ort.SessionOptions
) -> tuple[bytes | str, ort.SessionOptions]:
    """Return what ONNX Runtime is to read, and the settings that say where its weights lie.

    They also leave out folding where that would take too long: predict then computes the same.
    """
    if folds_too_much(source):
        _add(settings, DISABLED, "ConstantFolding")
    if source.data is None:
        return str(source.path), settings
    look_in(source.folder, settings)
    return source.data, settings


def graph_of(source: ModelSource) -> GraphInfo:
    """Return what the core has read of a model."""
    assert source.graph is not None, "the core reads every ONNX file before a backend does"
    return source.graph


def look_in(folder: Path | None, settings: ort.SessionOptions) -> None:
    """Set the folder of external data, for a model that is given as bytes."""
    if folder is not None:
        settings.add_session_config_entry(_FOLDER, str(folder))


def give_files(source: ModelSource, settings: ort.SessionOptions) -> ModelSource:
    """Hand over external data that is in memory; return the source as it is to be read then.

    ONNX Runtime copies of it what a session needs, and remembers where it was: no session is to be
    made with these settings later.
    """
    if not source.files:
        return source
    # ONNX Runtime looks for all external data in memory where there is some.
    is_mixed = any(parameter.location for parameter in graph_of(source).parameters)
    if is_mixed or not hasattr(settings, _GIVE_FILES):  # which came after 1.23
        from engine.model_bytes import inlined

        return inlined(source)
    contents = list(source.files.values())
    getattr(settings, _GIVE_FILES)([*source.files], contents, [*map(len, contents)])
    return source


def make_session(
    source: ModelSource,
    model: bytes | str,
    settings: ort.SessionOptions,
    cancel: CancelToken | None,
) -> ort.InferenceSession:
    """Have ONNX Runtime make a session, until the token is cancelled. Raises ModelError."""
    try:
        with _stopping(settings, cancel):
            session = session_from(model, settings)
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        if raised_by_handler(error):
            raise
        if cancel is not None:
            cancel.check()
        if settings.use_per_session_threads and thread_pool.is_refused(error):
            thread_pool.join(settings)
            return make_session(source, model, settings, cancel)
        from engine_cpu.errors import explained  # rare

        reason = _OUT_OF_MEMORY if is_out_of_memory(error) else explained(str(error))
        raise ModelError(f"{source.name}: {reason}", source.name) from error
    # It keeps the file's bytes for that fallback, as long as it lives.
    session._model_bytes = None
    return session


def session_from(model: bytes | str, settings: ort.SessionOptions) -> ort.InferenceSession:
    """Have ONNX Runtime make a session, without its own fallback.

    An optimisation that spoils a sound model is left out.
    """
    try:
        # That prints to stdout, and tries the same once more.
        return ort.InferenceSession(model, settings, PROVIDERS, enable_fallback=0)
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        remedies = [remedy for text, remedy in _SPOILED.items() if text in str(error)]
        if not remedies or raised_by_handler(error):
            raise
        for key, value in remedies[0].items():
            _add(settings, key, value)
        try:
            return ort.InferenceSession(model, settings, PROVIDERS, enable_fallback=0)
        except Exception as again:
            if raised_by_handler(again):
                raise
            raise error from None  # it was another matter


def _add(settings: ort.SessionOptions, key: str, value: str) -> None:
    """Set an entry; optimizers that are left out are added to those that are already."""
    if key == DISABLED:
        with suppress(RuntimeError):  # there is none
            value = f"{settings.get_session_config_entry(key)};{value}"
    settings.add_session_config_entry(key, value)


def _stopping(
    settings: ort.SessionOptions, cancel: CancelToken | None
) -> AbstractContextManager[None]:
    """Have ONNX Runtime give up the session that it makes inside when the token is cancelled."""
    if cancel is None or not hasattr(settings, CANCELS_LOAD):
        return nullcontext()
    return cancel.watch(partial(getattr(settings, CANCELS_LOAD), True))


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
        if raised_by_handler(error):
            raise
        if is_out_of_memory(error):
            raise ModelError(f"{source.name}: {_OUT_OF_MEMORY}", source.name) from error
        if refusal is not None:
            raise refusal from error
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelError(f"{source.name}: {text}", source.name) from error


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True for what Python or ONNX Runtime raises where memory is short."""
    return isinstance(error, MemoryError) or "std::bad_alloc" in str(error)


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
