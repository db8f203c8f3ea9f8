"""The models that are served, by name and version: loaded, replaced and unloaded."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from engine.errors import Cancelled
from engine_serve import config_file
from engine_serve.errors import NotFound, Unavailable, note_load, text_of
from engine_serve.folder import Source, Sources
from engine_serve.loaded import LoadedModel
from engine_serve.uploads import Upload, Uploads

_STAYS = "and it serves until it is unloaded"
_log = logging.getLogger("engine_serve")

Build = Callable[[str, str, Path, Any], LoadedModel]
"""From a name, a version, its file and its configuration to a model."""


class Entry(NamedTuple):
    """A line of the index."""

    name: str
    version: str
    state: str
    reason: str


class Repository:
    """Models by name and version. Any thread may call any method.

    A request borrows its version and gives it back. A version that is replaced or unloaded takes
    no new requests, and is closed when the last is given back. uploads: for models that clients
    send; without it they may send none. may_change: clients may load models.
    """

    def __init__(
        self,
        sources: Sources,
        build: Build,
        uploads: Uploads | None = None,
        *,
        may_change: bool = True,
    ) -> None:
        self._may_change = may_change
        self.uploads = uploads or Uploads(0)
        self._look = sources.now
        self._looking = threading.Lock()
        self._sources = sources.now()
        self._build = build
        self._lock = threading.Lock()  # held for moments
        self._changing = threading.Lock()  # one load or unload after the other
        self._models: dict[str, dict[str, LoadedModel]] = {}
        self._retired: set[LoadedModel] = set()
        self._failures: dict[str, str] = {}
        self._loading: str = ""
        self._wanted = {*self._sources}  # what has not to be loaded leaves the server ready
        self._unloaded: set[str] = set()  # by a request

    # ---------------------------------------------------------------------------------- requests

    def borrow(self, name: str, version: str) -> LoadedModel:
        """Return a version, "" for the newest, for a request that gives it back.

        Raises NotFound, Unavailable.
        """
        with self._lock:
            versions = self._models.get(name)
            if versions:
                model = versions.get(version or next(iter(versions)))
                if model is not None:
                    model.in_flight += 1
                    return model
            raise self._missing(name, version)

    def give_back(self, model: LoadedModel) -> None:
        """End a request's use of a version."""
        with self._lock:
            model.in_flight -= 1
            is_over = not model.in_flight and model in self._retired
            self._retired.difference_update((model,) if is_over else ())
        if is_over:
            _end(model)

    def _missing(self, name: str, version: str) -> Exception:
        versions = self._models.get(name)
        if versions:
            listed = ", ".join(versions)
            return NotFound(f"model {name!r} has no version {version!r}; loaded: {listed}")
        if name in self._failures:
            return Unavailable(f"model {name!r} could not be loaded: {self._failures[name]}")
        if name in self._sources:
            is_to_come = name in self._wanted or not self._may_change
            way = f": POST /v2/repository/models/{quote(name)}/load (gRPC: RepositoryModelLoad)"
            return Unavailable(f"model {name!r} is not loaded{'' if is_to_come else way}")
        return NotFound(f"there is no model {name!r}; models: {', '.join(self.names) or 'none'}")

    # ------------------------------------------------------------------------------------- facts

    def loaded(self, name: str = "", version: str = "") -> list[LoadedModel]:
        """Return the loaded versions: all, those of a name, or one. Raises as `borrow`."""
        with self._lock:
            if not name:
                return [model for versions in self._models.values() for model in versions.values()]
            versions = self._models.get(name, {})
            found = [model for key, model in versions.items() if version in ("", key)]
            if not found:
                raise self._missing(name, version)
            return found

    @property
    def is_ready(self) -> bool:
        """Return whether every model is loaded that was to be, and can run requests now."""
        with self._lock:  # nobody closes these meanwhile
            models = [model for versions in self._models.values() for model in versions.values()]
            is_complete = self._wanted <= self._models.keys()
            return is_complete and all(model.runner.is_ready for model in models)

    def index(self, *, ready: bool = False) -> list[Entry]:
        """Return all models and versions with their states. ready: those that take requests."""
        return [entry for entry in self._entries() if not ready or entry.state == "READY"]

    def _entries(self) -> Iterator[Entry]:
        with self._lock:  # nobody closes these meanwhile
            loaded = {
                name: [(version, model.runner.why_not_ready) for version, model in versions.items()]
                for name, versions in self._models.items()
            }
            failures, loading, names = dict(self._failures), self._loading, self.names
            gone = {name: self._gone(name) for name in loaded.keys() - self._sources}
            unloaded = {*self._unloaded}
        for name in names:
            for version, reason in loaded.get(name, ()):
                state = "UNAVAILABLE" if reason else "READY"
                yield Entry(name, version, state, reason or gone.get(name, ""))
            if name == loading:
                yield Entry(name, "", "LOADING", "")
            elif name in failures:
                yield Entry(name, "", "UNAVAILABLE", failures[name])
            elif name not in loaded:
                reason = "unloaded" if name in unloaded else "not loaded"
                yield Entry(name, "", "UNAVAILABLE", reason)

    # ----------------------------------------------------------------------------------- changes

    @property
    def names(self) -> list[str]:
        """Return the names of all models: those that are there, and those that are loaded."""
        return sorted({*self._sources, *self._models})

    def refresh(self) -> Mapping[str, Source]:
        """Look which models there are now, and return them. What is loaded stays so."""
        with self._looking:
            found = self._look()
            with self._lock:
                self._sources = found
                self._wanted &= {*found, *self._models}
                for name in self._failures.keys() - found:
                    del self._failures[name]
        return found

    def load(
        self,
        name: str,
        config: Any = None,
        *,
        upload: Upload | None = None,
        is_asked: bool = True,
    ) -> None:
        """Load a model, or what its files are now in place of what is loaded.

        The new versions are built beside the old ones and take their place at once; if one cannot
        be built, the old ones stay. config: a ModelConfig in place of the file's, but for where the
        model runs. upload: files in place of those that are there; they are removed after use.
        is_asked: the server is not ready where a new model cannot be loaded; without it, what a
        client has unloaded or sent stays so.
        Raises NotFound, and what building raises.
        """
        with ExitStack() as closing:
            if upload is not None:
                closing.callback(upload.leave)
            closing.enter_context(self._changing)
            if not is_asked and self._is_clients(name):
                return
            source = self._source(name) if upload is None else upload.source
            self._loading = name
            built: dict[str, LoadedModel] = {}
            own = (
                config is None and upload is None
            )  # a client's mistake says nothing of the server's readiness
            try:
                config = config_file.with_own_parameters(config, source.config())
                files = source.versions(config)
                for version in sorted(files, key=int, reverse=True):  # the newest is the default
                    built[version] = self._build(name, version, files[version], config)
            except BaseException as error:
                if not isinstance(error, Cancelled):
                    note_load(error, name)
                _close(built.values())
                with self._lock:
                    if name not in self._models and own:
                        self._failures[name] = text_of(error)
                        self._wanted.update((name,) if is_asked else ())
                raise
            finally:
                self._loading = ""
            if upload is not None:
                upload.uses += len(built)
                for model in built.values():
                    model.upload = upload
            with self._lock:
                old, self._models[name] = self._models.get(name, {}), built
                self._failures.pop(name, None)
                self._wanted.add(name)
                self._unloaded.discard(name)
            self._retire(old)
            _log.info("model %r is loaded: version %s", name, ", ".join(built))

    def unload(self, name: str) -> None:
        """Take a model's versions away; requests that have come are answered. Raises NotFound."""
        with self._changing:
            with self._lock:
                if name not in self.names:
                    raise self._missing(name, "")
                old = self._models.pop(name, {})
                self._failures.pop(name, None)
                self._wanted.discard(name)
                self._unloaded.update({name} & self._sources.keys())
            self._retire(old)
            if old:
                _log.info("model %r is unloaded", name)

    def close(self) -> None:
        """Unload all models."""
        for name in self.names:
            self.unload(name)
        self.uploads.close()

    def _is_clients(self, name: str) -> bool:
        """Return whether a client has unloaded a model, or sent the files of what is loaded."""
        with self._lock:
            is_sent = any(model.upload for model in self._models.get(name, {}).values())
            return is_sent or name in self._unloaded

    def _source(self, name: str) -> Source:
        """Return a model that is there now. Raises NotFound."""
        source = self.refresh().get(name)
        if source is None:
            with self._lock:
                if name in self._models:
                    raise NotFound(f"model {name!r}: {self._gone(name)}")
                raise self._missing(name, "")
        return source

    def _gone(self, name: str) -> str:
        """Return why a model that is loaded has no files in the server's folders."""
        is_sent = any(model.upload for model in self._models[name].values())
        return f"{'a client has sent its files' if is_sent else 'its files have gone'}, {_STAYS}"

    def _retire(self, versions: Mapping[str, LoadedModel]) -> None:
        with self._lock:
            over = [model for model in versions.values() if not model.in_flight]
            self._retired.update(model for model in versions.values() if model.in_flight)
        _close(over)


def _close(models: Iterable[LoadedModel]) -> None:
    """Close models, all of them, whatever one raises."""
    for model in models:
        try:
            model.close()
        except Exception as error:
            _log.error("model %r could not be closed: %s", model.name, text_of(error))


def _end(model: LoadedModel) -> None:
    """Close a model in a thread of its own: closing waits."""
    threading.Thread(target=_close, args=((model,),), name=f"close {model.name}").start()
