"""Load: from a validated model to an ONNX Runtime session.

ONNX Runtime reads and compiles in one step, so engine_load makes the session and engine_compile
(executable.py) hands it on. Only a model that ONNX Runtime refuses, or runs with kernels that
known_issues.py names, is prepared for it (prepare/), and only that costs more than the session. A
session that is to be kept in compiled form writes it and is opened anew from that (compiled.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime as ort

from engine.errors import BackendUnavailable, CompiledFormError, ModelError
from engine.types import (
    CancelToken,
    CompileOptions,
    GraphInfo,
    ModelSource,
    TensorSpec,
    ValueKind,
)
from engine_cpu import thread_pool
from engine_cpu.compiled import CompiledForm, check, discard, finish, trim, write_into
from engine_cpu.errors import explained
from engine_cpu.options import session_options
from engine_cpu.prescreen import may_have_known_issues
from engine_cpu.run import PLAIN

if TYPE_CHECKING:
    from engine_cpu.prepare import Prepared

_FOLDER = "session.model_external_initializers_file_folder_path"
_GIVE_FILES = "add_external_initializers_from_files_in_memory"
CANCELS_LOAD = "set_load_cancellation_flag"
PROVIDERS = ["CPUExecutionProvider"]
_OUT_OF_MEMORY = "out of memory while compiling"

if os.environ.get("ORT_DISABLE_TELEMETRY") != "0":
    ort.disable_telemetry_events()  # for a process that imported onnxruntime before this backend


class CpuModel:
    """A model and, where ONNX Runtime can run all of it, the session made for it.

    unsupported: the nodes that it cannot run, and why; then there is no session.
    rewritten: nodes that are computed otherwise than by a kernel of their own, and how.
    form: the compiled form that the session was opened from.
    """

    def __init__(
        self,
        source: ModelSource,
        session: ort.InferenceSession | None,
        unsupported: Mapping[int, str] | None = None,
        rewritten: Mapping[int, str] | None = None,
        form: CompiledForm | None = None,
    ) -> None:
        self.source = source
        self.session = session
        self.form = form
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
    if source.compiled is not None:
        form = check(source.compiled, graph_of(source))
        return CpuModel(source, _reopened(source, form, options), form=form)
    carried, unpassable = _odd_values(graph_of(source))
    if unpassable:
        return CpuModel(source, None, unpassable)
    is_suspect = bool(carried) or may_have_known_issues(source)
    # What was made of a secret model, or of one that is written otherwise, is kept nowhere.
    if options.save_to is not None and not source.is_secret and not is_suspect:
        saved = _saved(source, options, options.save_to)
        if saved is not None:
            return saved
    return _load_plain(source, options, carried, is_suspect)


def _load_plain(
    source: ModelSource, options: CompileOptions, carried: Sequence[str], is_suspect: bool
) -> CpuModel:
    settings = session_options(options)
    source = _give_files(source, settings)
    session = refusal = None
    try:
        session = _session(source, *_model_of(source, settings), options.cancel)
        if not is_suspect:
            return CpuModel(source, session)
    except ModelError as error:
        if _is_out_of_memory(error.__cause__):
            raise
        refusal = error
    if options.cancel is not None:
        options.cancel.check()
    prepared = _prepared(source, refusal, carried)
    if prepared.unsupported:
        return CpuModel(source, None, prepared.unsupported)
    if prepared.data:
        if source.data is None:
            look_in(prepared.folder, settings)
        session = _session(source, prepared.data, settings, options.cancel)
    return CpuModel(source, session, rewritten=prepared.rewritten)


def _saved(source: ModelSource, options: CompileOptions, folder: Path) -> CpuModel | None:
    """Make a session that writes its compiled form, and open that; None where it writes none.

    That is for a model that ONNX Runtime refuses as it is or does not write whole, and a disk that
    is full.
    """
    source_inputs = graph_of(source).inputs
    settings = session_options(options)
    write_into(settings, folder)
    source = _give_files(source, settings)
    try:
        session = _session(source, *_model_of(source, settings), options.cancel)
        del session  # its weights are in memory of its own; those of the form are mapped
        trim()
        form = finish(folder, graph_of(source))
        if options.cancel is not None:
            options.cancel.check()
        session = _reopened(source, form, options)
    except BaseException as error:
        discard(folder)
        is_of_no_use = isinstance(error, ModelError | OSError | ValueError)
        if not is_of_no_use or _is_out_of_memory(error.__cause__):
            raise
        return None
    # A constant that the file lists among its inputs, and that is folded away, stays an input.
    if {item.name for item in session.get_inputs()} != {spec.name for spec in source_inputs}:
        discard(folder)
        return None
    return CpuModel(source, session, form=form)


def _reopened(
    source: ModelSource, form: CompiledForm, options: CompileOptions
) -> ort.InferenceSession:
    settings = session_options(options)
    # It is optimised; and what ran once is what is to run again, bit by bit.
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = _session(source, str(form.graph), settings, options.cancel)
    except ModelError as error:
        if _is_out_of_memory(error.__cause__):
            raise
        text = f"compiled form {str(form.graph.parent)!r}: {error}"
        raise CompiledFormError(text, str(form.graph.parent)) from error
    trim()
    return session


def _model_of(
    source: ModelSource, settings: ort.SessionOptions
) -> tuple[bytes | str, ort.SessionOptions]:
    """Return what ONNX Runtime is to read, and the settings that say where its weights lie."""
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


def _give_files(source: ModelSource, settings: ort.SessionOptions) -> ModelSource:
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


def _session(
    source: ModelSource,
    model: bytes | str,
    settings: ort.SessionOptions,
    cancel: CancelToken | None,
) -> ort.InferenceSession:
    try:
        with _stopping(settings, cancel):
            # Without its own fallback: that prints to stdout, and tries the same once more.
            session = ort.InferenceSession(model, settings, PROVIDERS, enable_fallback=0)
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        if cancel is not None:
            cancel.check()
        if settings.use_per_session_threads and thread_pool.is_refused(error):
            thread_pool.join(settings)
            return _session(source, model, settings, cancel)
        reason = _OUT_OF_MEMORY if _is_out_of_memory(error) else explained(str(error))
        raise ModelError(f"{source.name}: {reason}", source.name) from error
    # It keeps the file's bytes for that fallback, as long as it lives.
    session._model_bytes = None
    return session


def _stopping(
    settings: ort.SessionOptions, cancel: CancelToken | None
) -> AbstractContextManager[None]:
    """Have ONNX Runtime give up the session that it makes inside when the token is cancelled."""
    if cancel is None or not hasattr(settings, CANCELS_LOAD):
        return nullcontext()
    return cancel.watch(partial(getattr(settings, CANCELS_LOAD), True))


def _prepared(source: ModelSource, refusal: ModelError | None, carried: Sequence[str]) -> Prepared:
    try:
        from engine_cpu.prepare import prepare

        return prepare(source, refusal is None, carried)
    except Exception as error:  # onnx's and protobuf's have no common base
        if _is_out_of_memory(error):
            raise ModelError(f"{source.name}: {_OUT_OF_MEMORY}", source.name) from error
        if refusal is not None:
            raise refusal from error
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelError(f"{source.name}: {text}", source.name) from error


def _is_out_of_memory(error: BaseException | None) -> bool:
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
