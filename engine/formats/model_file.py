"""One model on its way in: opened, recognised, decrypted and checked once, whoever asks next."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from engine.errors import ModelError
from engine.formats import files, kinds
from engine.formats.content import Content, decrypted
from engine.formats.onnx import OnnxModel, read_model, read_part
from engine.formats.onnx.regular import REGULAR
from engine.formats.opened import FileVersion, OpenedSource
from engine.formats.recent import read_once
from engine.host.lease import leased
from engine.types import CancelToken, ModelSource

if TYPE_CHECKING:
    from engine.formats.description import CompiledModels, Description
    from engine.formats.format import FormatFile
    from engine.formats.recognised import Recognised

NO_SUFFIXES: Mapping[str, str] = {}


class LoweredForms(Protocol):
    """A place in which what formats make of their files is kept."""

    def use(
        self,
        asked: FormatFile,
        version: str,
        lower: Callable[[], OpenedSource],
        check: Callable[[], None] | None = None,
    ) -> OpenedSource:
        """Return what `lower` makes, or the same of a form that is kept.

        version: of the format. check: called while another process is waited for that makes one;
        may raise.
        """


class ModelFile:
    """A model file, or a model in memory, that is opened when it is first asked for.

    Calling it gives the model for a backend. Nothing is read or checked twice: not for a second
    target, nor for a command that shows the model and then builds it.
    For one thread at a time. It holds the file's content, or a mapping of it, as long as it lives
    or until the model in it is ready for backends.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dec_key: bytes | None = None,
        dec_mode: str = "AES-GCM",
        folder: str | os.PathLike[str] | None = None,
        variable_weights: tuple[str, ...] = (),
        input_shapes: Mapping[str, Sequence[int | None]] | None = None,
    ) -> None:
        """Remember what to open.

        dec_key, dec_mode: the key of an encrypted file, which holds MindIR or ONNX. folder: where
        the data files of a split MindIR are, if not beside it. variable_weights: weights that
        become inputs of the graph, by name, or by the name of the node that reads them; see
        `OpenedSource.variables`. input_shapes: see `Format.takes_shapes`.
        """
        self.path: Path | None = Path(path)
        self.entry = ""
        """The name of one of several models in a compiled form; "" for the first or only one."""
        self._dec_key = dec_key or None
        self._dec_mode = dec_mode
        self._folder = Path(folder) if folder else None
        self._variable_weights = variable_weights
        self._input_shapes = input_shapes
        self._weights: bytes | None = None  # the data file of a split MindIR in memory
        self._version: FileVersion | None = None
        self._cancel: CancelToken | None = None
        self._forms: Callable[[], LoweredForms] | None = None
        self._kind = ""
        self._is_whole_onnx = False
        self._encryption = ""
        self._data: bytes | mmap.mmap | None = None  # as it is stored
        self._content: Content | None = None
        self._recognised: tuple[Recognised | None] | None = None
        self._source: OpenedSource | None = None
        self._plain: OpenedSource | None = None  # where `_source` has variable weights

    @classmethod
    def of_bytes(
        cls,
        data: bytes,
        weights: bytes | None = None,
        *,
        variable_weights: tuple[str, ...] = (),
        input_shapes: Mapping[str, Sequence[int | None]] | None = None,
    ) -> ModelFile:
        """Make one of a model in memory, which is not copied.

        External data is refused: bytes have no folder to find it in. weights: the data file of a
        split MindIR. input_shapes: as above.
        """
        file = cls("", variable_weights=variable_weights, input_shapes=input_shapes)
        file.path = None
        file._data = data
        file._weights = weights
        return file

    @classmethod
    def of_part(cls, part: OpenedSource) -> ModelFile:
        """Make one of a model that was cut out of another, as `source_of_part` gives it."""
        assert part.data is not None, "a part is in memory, and refers to weights elsewhere"
        file = cls.of_bytes(part.data)
        file._source = part
        return file

    @property
    def name(self) -> str:
        """The name in messages: the path as given, or "model bytes"."""
        return str(self.path) if self.path is not None else "model bytes"

    @property
    def kind(self) -> str:
        """The kind of what is stored, by its content: see `recognise`. Raises ModelError."""
        self._open()
        if self._kind == kinds.ENCRYPTED_MINDIR:
            return self._kind
        format = self._format()
        return self._kind if format is None else format.name

    @property
    def encryption(self) -> str:
        """The mode in which the file is encrypted, "" for not at all. Raises ModelError."""
        self._open()
        return self._encryption

    @property
    def takes_shapes(self) -> bool:
        """True where `lower_for` has an effect: see `Format.takes_shapes`. Raises ModelError."""
        format = self._format()
        return format is not None and format.takes_shapes

    @property
    def format(self) -> str:
        """The name of the format of what the file holds, decrypted: "onnx", or an installed one.

        "" for any other. Raises ModelError.
        """
        format = self._format()
        return kinds.ONNX if self.is_onnx else "" if format is None else format.name

    @property
    def is_onnx(self) -> bool:
        """True for an ONNX model, also an encrypted one that was opened. Raises ModelError."""
        return self._opened().kind == kinds.ONNX and self._format() is None

    @property
    def version(self) -> FileVersion | None:
        """The state of the file when it was opened; None before that, and for bytes."""
        return self._version

    def unlock(self, dec_key: bytes | None, dec_mode: str) -> None:
        """Set the key, for one who has to see `encryption` before knowing it."""
        self._dec_key = dec_key or None
        self._dec_mode = dec_mode

    def lower_for(self, shapes: Mapping[str, Sequence[int | None]]) -> None:
        """Set the shapes of all inputs to read the file for; what was read before is gone."""
        self._input_shapes, self._source = shapes, None

    def look_in(self, folder: str | os.PathLike[str] | None) -> None:
        """Set where the data files of a split MindIR are; None stands for beside it."""
        self._folder = Path(folder) if folder else None

    def vary(self, names: tuple[str, ...]) -> None:
        """Set the weights that become inputs of the graph; what was read before is read again."""
        if names == self._variable_weights:
            return
        self._variable_weights = names
        if self._source is not None and self.path is not None:
            self._kind, self._data, self._content = "", None, None
        self._source = self._plain = None

    def with_constants(self) -> OpenedSource:
        """Return the model with its variable weights as constants, as they are in the file.

        It must have been opened. An ONNX model is then the one that it is without them.
        """
        assert self._source is not None
        if self._plain is not None or not self._source.variables:
            return self._plain or self._source
        from engine.formats.onnx.weights import with_constants  # rare

        return with_constants(self._source, {})

    def watch(self, cancel: CancelToken | None) -> None:
        """Let a token stop the work of a format, with Cancelled; None for no token."""
        self._cancel = cancel

    def keep_in(self, forms: Callable[[], LoweredForms] | None) -> None:
        """Set what finds the place for what a format makes of the file; None to keep nothing."""
        self._forms = forms

    def compiled_models(self) -> CompiledModels | None:
        """Return the models in a MindIR that are compiled for Ascend; None for any other file.

        `entry` means one of them by its number. Raises ModelError.
        """
        description = self.description()
        return None if description is None else description.compiled

    def description(self) -> Description | None:
        """Describe a file as it is written, where its format can; None for any other file.

        Raises ModelError.
        """
        with self._kept():
            format = self._format()
            return None if format is None else format.describe(self._asked(NO_SUFFIXES))

    def __call__(self, suffixes: Mapping[str, str] = NO_SUFFIXES) -> OpenedSource:
        """Return the model for a backend, checked.

        suffixes: file name endings of the backend's own compiled forms, and their formats, e.g.
            {".engine": "plan"}. Such a file is passed on unread, with `graph` None; so is one that
            a format finds in its file.
        Of an ONNX model it has the graph's description and, up to 4 MiB, the bytes that were
        checked; of a larger one the path, to be read by the runtime itself, and the version that
        was checked: see `OpenedSource.check_unchanged`. Of an encrypted file it has the bytes,
        whatever their size, and they are written nowhere. A file that breaks a rule but says
        clearly what it means (nodes out of order, outputs without a type that follows from the
        rest, one initializer twice) is made regular: the bytes are not the file's then.
        Raises ModelError; InputError for a variable weight that is not in the model.
        """
        if self._source is None:
            with self._kept():
                content = self._opened()
                if (format := self._format()) is not None:
                    source = self._of_format(format, self._asked(suffixes))
                    if source.graph is None:
                        return source  # for those alone who run such a form
                    self._source = self._rewritten(source)
                elif content.kind == kinds.ONNX:
                    self._source = self._rewritten(self._onnx(content))
                    self._content = content._replace(data=b"")  # a large file is not to stay mapped
                    self._data = b""
                else:
                    return self._compiled(content, suffixes)
        return self._source

    # ------------------------------------------------------------------------------------- opening

    def _kept(self) -> AbstractContextManager[object]:
        """Keep writers from a file that is mapped, while it is read: see `leased`."""
        try:
            is_large = self.path is not None and os.stat(self.path).st_size > files.READ_BYTES
        except (OSError, ValueError):  # opening it says what is wrong
            is_large = False
        return leased(self.path) if self.path is not None and is_large else nullcontext()

    def _open(self) -> bytes | mmap.mmap:
        """Return what is stored; it is recognised when it is first asked for."""
        if not self._kind:
            if self._data is None:
                assert self.path is not None
                self._data, self._version = files.open_file(self.path)
            view = memoryview(self._data)
            if not view:
                raise ModelError(f"{self.name}: empty; expected a model")
            self._kind, self._is_whole_onnx = kinds.recognised_kind(view)
            self._encryption = kinds.encryption_of(view)
        assert self._data is not None
        return self._data

    def _opened(self) -> Content:
        """Return what the file holds, decrypted. Raises ModelError for a missing or wrong key."""
        if self._content is None:
            data = self._open()
            self._content = decrypted(data, self._kind, self.path, self._dec_key, self._dec_mode)
        return self._content

    def _onnx(self, content: Content) -> OpenedSource:
        if self._weights:
            import logging  # rare

            logging.getLogger("engine").warning(
                "weight_bytes are not used: these model_bytes are ONNX, which has its weights in it"
            )
        read = partial(read_model, memoryview(content.data), self.path, self.name)
        if self.path is None or self._version is None or content.encryption:
            model = read()
        else:
            model = read_once(self.path, self._version, read)
        data = content.data if isinstance(content.data, bytes) else None
        if model.linked_out:
            # Such data is found from the path only (see ExternalFiles), and there lies no
            # plaintext.
            if content.encryption:
                raise ModelError(
                    f"{self.name}: its external data is reached through links out of its folder, "
                    "which an encrypted model cannot have; keep the data itself beside the model",
                    self.name,
                )
            data = None
        data = model.repaired or data
        versions = dict(model.versions)
        if data is None and self.path is not None and self._version is not None:
            versions[self.path] = self._version
        return self._of_onnx(
            model,
            model.repaired or content.data,
            data=data,
            folder=None if self.path is None else self.path.parent,
            is_secret=bool(content.encryption),
            versions=versions,
        )

    def _of_onnx(self, model: OnnxModel, content: bytes | mmap.mmap, **given: Any) -> OpenedSource:
        """Return the source of an ONNX model, with its variable weights as inputs.

        content: what the model was read from. given: further fields of the source.
        """
        source = OpenedSource(
            format=kinds.ONNX,
            path=self.path,
            graph=model.graph,
            folds_too_much=model.folds_too_much,
            # The pass that the reader has applied, if any.
            passes=() if model.repaired is None else (f"regular {REGULAR.version}",),
            **given,
        )
        if not self._variable_weights:
            return source
        from engine.formats.onnx.weights import with_variables  # rare

        self._plain = source
        return with_variables(source, content, self._variable_weights)

    def _format(self) -> Recognised | None:
        """Return the installed format of the content; None for ONNX and what none recognises."""
        if self._recognised is None:
            data = self._open()
            is_encrypted = self._kind == kinds.ENCRYPTED_MINDIR
            # Only what is encrypted is asked for its key: a key too many is not this one's fault.
            content = self._opened() if is_encrypted else Content(self._kind, data)
            is_onnx = content.kind == kinds.ONNX
            if is_onnx and (self._is_whole_onnx or content.encryption):
                self._recognised = (None,)
            else:  # a format that begins with a text may look like damaged ONNX
                from engine.formats.recognised import HEAD_BYTES, recognised  # rare

                self._recognised = (recognised(bytes(content.data[:HEAD_BYTES]), not is_onnx),)
        return self._recognised[0]

    def _asked(self, suffixes: Mapping[str, str]) -> FormatFile:
        """Return what a format is asked for."""
        from engine.formats.format import FormatFile  # rare: most models are ONNX

        content = self._opened()
        return FormatFile(
            data=content.data,
            path=self.path,
            version=self._version,
            folder=self._folder,
            weights=self._weights,
            dec_key=self._dec_key if content.encryption else None,
            dec_mode=self._dec_mode,
            variable_weights=self._variable_weights,
            input_shapes=self._input_shapes,
            formats=frozenset(suffixes.values()),
            entry=self.entry,
            cancel=self._cancel,
        )

    def _rewritten(self, source: OpenedSource) -> OpenedSource:
        """Return the model after the passes that are switched on."""
        if not os.environ.get("ENGINE_PASSES"):
            return source
        from engine.formats.passes import enabled, rewritten  # rare

        self._plain = None  # it is made of the result
        return rewritten(source, enabled())

    def _of_format(self, format: Recognised, asked: FormatFile) -> OpenedSource:
        def read() -> OpenedSource:
            return self._checked(format.open(asked), format.name)

        is_plain = asked.dec_key is None and asked.weights is None and asked.input_shapes is None
        if self._forms is None or not is_plain or not format.version:
            return read()
        check = self._cancel.check if self._cancel is not None else None
        return self._forms().use(asked, f"{format.name} {format.version}", read, check)

    def _checked(self, source: ModelSource, format: str) -> OpenedSource:
        """Return what a format gave as all of the core has it."""
        where = "" if self.path is None else self.name
        if not isinstance(source, ModelSource):
            text = f"{self.name}: format {format!r} gave {source!r:.80}, expected a ModelSource"
            raise ModelError(text, where)
        is_secret = source.is_secret or bool(self._opened().encryption)
        if isinstance(source, OpenedSource) and (source.graph or source.format != kinds.ONNX):
            return source
        if source.format != kinds.ONNX:
            return OpenedSource(
                format=source.format,
                path=source.path or self.path,
                data=source.data,
                folder=source.folder,
                is_secret=is_secret,
                entry=source.entry or self.entry,
            )
        if source.data is None:
            raise ModelError(f"{self.name}: format {format!r} gave no ONNX model", where)
        model = read_part(source.data, source.folder, self.name, source.files)
        data = model.repaired or source.data
        return self._of_onnx(
            model,
            data,
            data=data,
            folder=source.folder,
            is_secret=is_secret,
            files=source.files,
            versions=dict(model.versions),
        )

    def _compiled(self, content: Content, suffixes: Mapping[str, str]) -> OpenedSource:
        # By content where the format has a magic number, else by name: compiled forms are opaque.
        kind = content.kind
        if self.path is not None:
            name = self.path.name.lower()
            named = (form for suffix, form in suffixes.items() if name.endswith(suffix))
            compiled = kind if kind in suffixes.values() else next(named, None)
            if compiled is not None:
                return OpenedSource(
                    format=compiled, path=self.path, folder=self.path.parent, entry=self.entry
                )
        view = memoryview(content.data)
        what, step = self._foreign(kind)
        start = bytes(view[:8]).hex(" ")
        seen = f" (it starts with {start})" if kind == kinds.UNKNOWN else ""
        raise ModelError(
            f"{self.name}: is {what}{seen}; expected a binary ONNX model; {step}",
            "" if self.path is None else self.name,
        )

    def _foreign(self, kind: str) -> tuple[str, str]:
        """Return what a file is that no format here reads, and what to do."""
        what, step = kinds.FOREIGN[kind]
        if kind == kinds.MINDIR:
            from engine.backends.install import pip_install_plugin
            from engine.formats.recognised import unusable  # rare

            broken = next((found for found in unusable() if found.name == kind), None)
            step = f"run: {pip_install_plugin('mindir')}" if broken is None else str(broken)
        return what, step
