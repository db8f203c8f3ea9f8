"""The compile cache: a model is optimised once per machine, and found again when it is built next.

The rule: it is for models whose weights are at least MIN_BYTES, and for any where the user names a
folder. A smaller one is built about as fast as its entry is opened. Secret models leave nothing in
it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from engine.backends import Backend, warn_once
from engine.formats.opened import OpenedSource
from engine.host.interrupts import raise_interrupt
from engine.options import nearest
from engine.plan.compile import compile_all
from engine.types import Capability, CompileOptions, GraphInfo, LoadedModel, ModelSource

if TYPE_CHECKING:  # small models need none of it
    from engine.plan.plan import Compiled
    from engine.weights.store import Identity, Store

T = TypeVar("T")


class Build(Protocol):
    """The work that the cache saves: `compile_all`, or what stands around it."""

    def __call__(
        self,
        backend: Backend,
        source: ModelSource,
        options: CompileOptions,
        loaded: LoadedModel | None = None,
    ) -> Compiled:
        """See `compile_all`."""


MIN_BYTES = 8 << 20
"""Weights from which on a model is kept; a file of that size is kept lowered to ONNX."""

IS_SMALL = (
    f"models below {MIN_BYTES:,} are kept only where [common_context] model_cache_dir names a "
    "folder"
)
"""Why a small model is built without the cache."""

IS_SECRET = "it is encrypted, and nothing of such a model is kept"
"""Why an encrypted model is built without the cache."""

UNCACHED = {"common_context": {"compile_cache": "off"}}
"""The configuration of a build that leaves nothing: of a file aside, or one to be encrypted."""


def without_cache(
    config: Mapping[str, Mapping[str, str]],
) -> Mapping[str, Mapping[str, str]]:
    """Return a configuration that leaves nothing in the cache, and is as it was otherwise."""
    common = {**config.get("common_context", {}), **UNCACHED["common_context"]}
    return {**config, "common_context": common}


class Mode(StrEnum):
    """Use of the cache."""

    ON = "on"  # what is there is used, what is not is made, after the build where that is dear
    WAIT = "wait"  # the same, and a build returns when all is made
    READ = "read"  # what is there is used
    OFF = "off"

    @property
    def makes(self) -> bool:
        """True where what is not there is made."""
        return self in (Mode.ON, Mode.WAIT)


class Unwritten(NamedTuple):
    """An entry that is to be written when the model has been built without it.

    store: where. backend, source, options: what it is of; without the model's bytes, if these are
    many. sketched: see `engine.weights.identity.sketch`.
    """

    store: Store
    backend: Backend
    source: OpenedSource
    options: CompileOptions
    sketched: str


def mode_of(config: Mapping[str, Mapping[str, str]]) -> Mode:
    """Return how a configuration, or else the environment, wants the cache to be used.

    Raises ValueError for what is no Mode.
    """
    asked = config.get("common_context", {}).get("compile_cache")
    text = asked or os.environ.get("ENGINE_CACHE") or Mode.ON
    try:
        return Mode(text.lower())
    except ValueError as error:
        near = str(nearest(text, Mode))
        hint = f"did you mean {near!r}? " if near else ""
        raise ValueError(
            f"[common_context] compile_cache, or ENGINE_CACHE, must be one of "
            f"{', '.join(Mode)}, but got {text!r}; {hint}".rstrip("; ")
        ) from error


class CompileCache:
    """Compiled forms of models, kept in a folder.

    folder: None for the default one, in which small models are not kept unless `keeps_small`.
    For any number of threads and processes.
    """

    def __init__(
        self, folder: Path | None = None, mode: Mode = Mode.ON, *, keeps_small: bool = False
    ) -> None:
        self.folder = folder
        self.mode = mode
        self.keeps_small = keeps_small or folder is not None
        self._unwritten: Unwritten | None = None
        self._leaves = False

    @classmethod
    def of(cls, config: Mapping[str, Mapping[str, str]]) -> CompileCache:
        """Return the cache that a configuration asks for.

        [common_context] model_cache_dir: its folder; the same key in [ascend_context] is taken
        too. [common_context] compile_cache: a Mode; without it the environment's ENGINE_CACHE,
        then ON. Raises ValueError for another.
        """
        common = config.get("common_context", {})
        ascend = config.get("ascend_context", {})
        folder = common.get("model_cache_dir") or ascend.get("model_cache_dir")
        return cls(Path(folder) if folder else None, mode_of(config))

    def leave_writing(self) -> None:
        """Leave the entry of a model that is read from its file to be written after the build.

        For the cache of one build; `unwritten` then has it.
        """
        self._leaves = self.mode is Mode.ON

    @property
    def unwritten(self) -> Unwritten | None:
        """The entry that the build has left to be written; None for none."""
        return self._unwritten

    @property
    def is_named(self) -> bool:
        """True where the user names a folder: models of any size are kept there."""
        return self.folder is not None

    def store(self) -> Store:
        """Open the cache's folder. Raises CacheUnusable."""
        from engine.weights.location import default_folder, expanded
        from engine.weights.store import Store

        return Store(expanded(self.folder) if self.folder else default_folder())

    def why_unused(self, backend: Backend, source: ModelSource, options: CompileOptions) -> str:
        """Return why a model of this kind is built without the cache; "" where it is not."""
        if reason := self._why_nothing(source):
            return reason
        if reason := backend.lacks(Capability.COMPILE_CACHE, options.device):
            return f"it is compiled each time: {reason}"
        return ""

    def _why_nothing(self, source: ModelSource) -> str:
        """Return why nothing of a model is kept, whatever its backend is."""
        if self.mode is Mode.OFF:
            return "the compile cache is off"
        if source.is_secret:
            return IS_SECRET
        if source.graph is None:
            return "it is a compiled form itself"
        if not self.keeps_small and weights_bytes(source) < MIN_BYTES:
            return f"its weights are {weights_text(source)}, and {IS_SMALL}"
        return ""

    def compiled(
        self,
        backend: Backend,
        source: ModelSource,
        options: CompileOptions,
        loaded: LoadedModel | None = None,
        build: Build = compile_all,
    ) -> Compiled:
        """Compile a model: what its entry holds; or the model itself, making the entry.

        A fault of the cache is a warning, and the model is built without it. loaded: see
        CompiledForms. build: compiles it.
        """
        # Only of what is compiled first; what others then run, whole or in parts, is written now.
        leaves, self._leaves, self._unwritten = self._leaves, False, None
        if self.why_unused(backend, source, options):
            return build(backend, source, options, loaded)
        from engine.weights.identity import identify, key_of, sketch
        from engine.weights.location import CacheUnusable
        from engine.weights.making import Work, found_or_made

        try:
            store = self.store()
            key = key_of(backend, options)
            sketched = sketch(key, source)
            if store.is_formless(sketched):
                return build(backend, source, options)
            if leaves and can_start_processes() and self._is_left(store, key, source, options):
                # The writer of the entry finds there what this finds out for the machine.
                own = replace(options, cache_folder=store.shared(key["backend"]))
                made = build(backend, source, own, loaded)
                if made[0] is not None:
                    assert isinstance(source, OpenedSource)
                    self._unwritten = Unwritten(store, backend, source, options, sketched)
                return made
            identity = identify(store.digests, key, source)

            def make(folder: Path | None) -> Compiled:
                if folder is None:
                    return build(backend, source, options)
                shared = store.shared(identity.key["backend"])
                given = source
                if not backend.lacks(Capability.FILES_IN_MEMORY, options.device):
                    from engine.formats.onnx.weights import with_weights_apart

                    # Weights that stay mapped instead of being parsed: a third of the time.
                    given = with_weights_apart(source)
                saved = replace(options, save_to=folder, cache_folder=shared)
                return build(backend, given, saved)

            work = Work(
                identity=identity,
                title=source.name,
                nbytes=weights_bytes(source),
                read=lambda form: build(backend, replace(source, compiled=form), options),
                make=make,
                check=options.cancel.check if options.cancel is not None else None,
                sketched=sketched,
            )
            return found_or_made(store, self.mode.makes, work)
        except CacheUnusable as error:
            raise_interrupt(error)
            warn_once(f"the compile cache is not used: {error}")
            return build(backend, source, options)

    def _is_left(
        self, store: Store, key: Mapping[str, str], source: ModelSource, options: CompileOptions
    ) -> bool:
        """Return whether a model is built without an entry, which is written afterwards.

        Another process has to read the same model from its file. Compiling for a device
        costs as much once more; on the host it costs less than to write the entry.
        """
        if weights_bytes(source) < MIN_BYTES or store.is_read_only:
            return False
        if not isinstance(source, OpenedSource) or source.path is None or source.passes:
            return False
        if source.files or source.variables or source.state or len(source.data or b"") > MIN_BYTES:
            return False
        if options.device.type != "cpu" or options.devices or options.communicators or options.plan:
            return False
        from engine.weights.making import has_room

        return not is_there(store, key, source) and has_room(
            store, source.name, weights_bytes(source)
        )

    # ---------------------------------------------------------------------------- partitions

    def identified(self, source: ModelSource) -> ModelSource:
        """See CompiledForms."""
        if self._why_nothing(source) or not isinstance(source, OpenedSource) or source.digest:
            return source
        from engine.weights.digests import Unhashed
        from engine.weights.identity import model_digest
        from engine.weights.location import CacheUnusable

        try:
            digests = self.store().digests
            known = digests.known() if self._leaves and can_start_processes() else digests
            return replace(source, digest=model_digest(known, source))
        except Unhashed:  # nothing of it was kept, unless of a copy; the compiled form may be left
            return source
        except (CacheUnusable, OSError) as error:  # which `use` will meet too, and say
            raise_interrupt(error)
            return source

    def has(self, source: ModelSource, key: Mapping[str, str]) -> bool:
        """See CompiledForms."""
        from engine.weights.location import CacheUnusable

        if not isinstance(source, OpenedSource) or not source.digest:
            return False
        try:
            return self.store().version(_partition_of(source, key)) is not None
        except CacheUnusable as error:
            raise_interrupt(error)
            return False

    def find(
        self, source: ModelSource, key: Mapping[str, str], read: Callable[[Path], T]
    ) -> T | None:
        """See CompiledForms."""
        from engine.weights.location import CacheUnusable
        from engine.weights.store import Damaged

        assert isinstance(source, OpenedSource)
        identity = _partition_of(source, key)
        try:
            store = self.store()
            with store.locked(identity.name, shared=True):
                entry = store.find(identity)
                return None if entry is None else read(entry.form)
        except (CacheUnusable, Damaged, ValueError) as error:
            raise_interrupt(error)
            if isinstance(error, Damaged):
                import logging  # rare

                logging.getLogger("engine").warning(
                    "%s: its partition in the compile cache is not used, and is made anew: %s",
                    source.name, error,
                )  # fmt: skip
            return None

    def keep(
        self, source: ModelSource, key: Mapping[str, str], write: Callable[[Path], None]
    ) -> None:
        """See CompiledForms."""
        if not self.mode.makes or not isinstance(source, OpenedSource) or not source.digest:
            return
        from engine.weights.location import CacheUnusable

        identity = _partition_of(source, key)
        try:
            store = self.store()
            with store.locked(identity.name):
                folder = store.begin(identity)
                try:
                    write(folder)
                    store.remove(identity.name)
                    store.commit(identity, source.name)
                finally:
                    store.abandon(identity)
        except (CacheUnusable, OSError) as error:
            raise_interrupt(error)
            warn_once(f"the compile cache is not written: {error}")


def is_there(store: Store, key: Mapping[str, str], source: ModelSource) -> bool:
    """Return whether a model has an entry, as far as that is known without hashing its weights."""
    from engine.weights.digests import Unhashed
    from engine.weights.identity import identify

    try:
        return store.version(identify(store.digests.known(), key, source)) is not None
    except Unhashed:
        return False


def can_start_processes() -> bool:
    """Return whether this process can start Python beside it.

    A program of its own cannot, nor one that has Python built in (uWSGI, Blender): it would start
    itself; nor one that may not run it any more.
    """
    own = sys.executable or ""
    is_python = "py" in os.path.basename(own).lower() and not getattr(sys, "frozen", False)
    return os.name == "posix" and is_python and os.access(own, os.X_OK)


def _partition_of(source: OpenedSource, key: Mapping[str, str]) -> Identity:
    from engine.weights.store import Identity

    backend = key["backend"]
    if not backend.startswith("("):  # what is kept is no backend's
        backend = f"(partition, {backend} first)"
    return Identity(source.digest, {**key, "backend": backend})


# Operators of ai.onnx.ml that have their weights in attributes.
_IN_ATTRIBUTES = {
    "LinearClassifier", "LinearRegressor", "SVMClassifier", "SVMRegressor", "TreeEnsemble",
    "TreeEnsembleClassifier", "TreeEnsembleRegressor",
}  # fmt: skip


def uncounted_weights(graph: GraphInfo | None) -> str:
    """Return which weights no size here counts, in words; "" where all are counted."""
    if graph is None or "ai.onnx.ml" not in graph.opsets:
        return ""
    names = sorted({node.op_type for node in graph.nodes} & _IN_ATTRIBUTES)
    return f"those that {', '.join(names)} has in attributes are not counted" if names else ""


def weights_text(source: ModelSource) -> str:
    """Return how large a model's weights are, in words."""
    uncounted = uncounted_weights(source.graph)
    return f"{weights_bytes(source):,} bytes{uncounted and f' ({uncounted})'}"


def weights_bytes(source: ModelSource) -> int:
    """Return the size of a model's weights, as far as its main graph has them."""
    return sum(parameter.nbytes for parameter in source.graph.parameters) if source.graph else 0
