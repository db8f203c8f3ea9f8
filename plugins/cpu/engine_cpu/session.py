"""An ONNX Runtime session of a model, and what engine_load returns with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.errors import ModelError
from engine.host.interrupts import pass_interrupt, raised_by_handler
from engine.model_bytes import folds_too_much
from engine.types import (
    CancelToken,
    GraphInfo,
    ModelSource,
    TensorSpec,
)
from engine_cpu import thread_pool
from engine_cpu.prepared import DISABLED, Prepared
from engine_cpu.runtime import ort

if TYPE_CHECKING:
    from engine_cpu.compiled import CompiledForm
    from engine_cpu.prepare.ranks import RankCheck
    from engine_cpu.rewrites import Pattern
    from engine_cpu.workspace import Arena

_FOLDER = "session.model_external_initializers_file_folder_path"
_GIVE_FILES = "add_external_initializers_from_files_in_memory"
CANCELS_LOAD = "set_load_cancellation_flag"
PROVIDERS = ["CPUExecutionProvider"]
# Words of ONNX Runtime for a sound model that an optimisation of its own has spoiled, and the
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
    # Range of tensors with one element and an axis. A rule broken unfolded is refused again.
    "[ShapeInferenceError]": {DISABLED: "ConstantFolding"},
}
OUT_OF_MEMORY = "out of memory while compiling"

if os.environ.get("ORT_DISABLE_TELEMETRY") != "0":
    ort.disable_telemetry_events()  # for a process that imported onnxruntime before this backend


class CpuModel:
    """A model and, where ONNX Runtime can run all of it, the session made for it.

    unsupported: the nodes that it cannot run, and why; then there is no session.
    rewritten: nodes that are computed otherwise than by a kernel of their own, and how.
    leads: see Prepared.
    read: the model as ONNX Runtime has read it, where that is not as it is; but before rewrites.
    form: the compiled form that the session was opened from.
    ranks: checks inputs of no declared rank.
    arena: what its session shares with others, to be held as long as that lives.
    patterns: those that it was rewritten by (rewrites/). notes: what else placement says of nodes.
    """

    arena: Arena | None = None
    patterns: Sequence[Pattern] = ()
    notes: Mapping[int, str] = MappingProxyType({})

    def __init__(
        self,
        source: ModelSource,
        session: ort.InferenceSession | None,
        unsupported: Mapping[int, str] | None = None,
        rewritten: Mapping[int, str] | None = None,
        form: CompiledForm | None = None,
        ranks: RankCheck | None = None,
        read: ModelSource | None = None,
        leads: Mapping[int, int] | None = None,
    ) -> None:
        self.source = source
        self.read = read or source
        self.session = session
        self.form = form
        self.ranks = ranks
        self.unsupported = unsupported or {}
        self.rewritten = rewritten or {}
        self.leads = leads or {}

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
        with stopping(settings, cancel):
            session = session_from(model, settings)
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        pass_interrupt(error)
        if cancel is not None:
            cancel.check()
        if settings.use_per_session_threads and thread_pool.is_refused(error):
            thread_pool.join(settings)
            return make_session(source, model, settings, cancel)
        from engine_cpu.errors import explained  # rare

        reason = OUT_OF_MEMORY if is_out_of_memory(error) else explained(str(error))
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
            pass_interrupt(again)
            raise error from None  # it was another matter


def _add(settings: ort.SessionOptions, key: str, value: str) -> None:
    """Set an entry; optimizers that are left out are added to those that are already."""
    if key == DISABLED:
        with suppress(RuntimeError):  # there is none
            value = f"{settings.get_session_config_entry(key)};{value}"
    settings.add_session_config_entry(key, value)


def stopping(
    settings: ort.SessionOptions, cancel: CancelToken | None
) -> AbstractContextManager[None]:
    """Have ONNX Runtime give up the session that it makes inside when the token is cancelled."""
    if cancel is None or not hasattr(settings, CANCELS_LOAD):
        return nullcontext()
    return cancel.watch(partial(getattr(settings, CANCELS_LOAD), True))


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True for what Python or ONNX Runtime raises where memory is short."""
    return isinstance(error, MemoryError) or "std::bad_alloc" in str(error)
