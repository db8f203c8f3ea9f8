"""The models that are served, by name and version: loaded, replaced and unloaded."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from engine_serve.errors import NotFound, Unavailable, text_of
from engine_serve.folder import Source
from engine_serve.loaded import LoadedModel

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
    no new requests, and is closed when the last is given back.
    """

    def __init__(self, sources: Mapping[str, Source], build: Build) -> None:
        self._sources = dict(sources)
        self._build = build
        self._lock = threading.Lock()  # held for moments
        self._changing = threading.Lock()  # one load or unload after the other
        self._models: dict[str, dict[str, LoadedModel]] = {}
        self._retired: set[LoadedModel] = set()
        self._failures: dict[str, str] = {}
        self._loading: str = ""

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
            return Unavailable(f"model {name!r} is not loaded")
        listed = ", ".join(sorted(self._sources)) or "none"
        return NotFound(f"there is no model {name!r}; models: {listed}")

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
        """Return whether every model is loaded that was to be."""
        with self._lock:
            return not self._failures and not self._loading

    def index(self, *, ready: bool = False) -> list[Entry]:
        """Return all models and versions with their states. ready: those that take requests."""
        return [entry for entry in self._entries() if not ready or entry.state == "READY"]

    def _entries(self) -> Iterator[Entry]:
        with self._lock:
            loaded = {name: [*versions] for name, versions in self._models.items()}
            failures, loading = dict(self._failures), self._loading
        for name in sorted(self._sources):
            for version in loaded.get(name, ()):
                yield Entry(name, version, "READY", "")
            if name == loading:
                yield Entry(name, "", "LOADING", "")
            elif name in failures:
                yield Entry(name, "", "UNAVAILABLE", failures[name])
            elif name not in loaded:
                yield Entry(name, "", "UNAVAILABLE", "unloaded")

    # ----------------------------------------------------------------------------------- changes

    @property
    def names(self) -> list[str]:
        """Return the names of all models."""
        return sorted(self._sources)

    def load(self, name: str, config: Any = None) -> None:
        """Load a model, or what its files are now in place of what is loaded.

        The new versions are built beside the old ones and take their place at once; if one cannot
        be built, the old ones stay. config: a ModelConfig in place of the file's.
        Raises NotFound, and what building raises.
        """
        with self._changing:
            source = self._source(name)
            self._loading = name
            built: dict[str, LoadedModel] = {}
            own = config is None  # a client's mistake says nothing of the server's readiness
            try:
                config = source.config() if config is None else config
                files = source.versions(config)
                for version in sorted(files, key=int, reverse=True):  # the newest is the default
                    built[version] = self._build(name, version, files[version], config)
            except BaseException as error:
                for model in built.values():
                    model.close()
                with self._lock:
                    if name not in self._models and own:
                        self._failures[name] = text_of(error)
                raise
            finally:
                self._loading = ""
            with self._lock:
                old, self._models[name] = self._models.get(name, {}), built
                self._failures.pop(name, None)
            self._retire(old)
            _log.info("model %r is loaded: version %s", name, ", ".join(built))

    def unload(self, name: str) -> None:
        """Take a model's versions away; requests that have come are answered. Raises NotFound."""
        with self._changing:
            self._source(name)
            with self._lock:
                old = self._models.pop(name, {})
                self._failures.pop(name, None)
            self._retire(old)
            _log.info("model %r is unloaded", name)

    def close(self) -> None:
        """Unload all models."""
        for name in self.names:
            self.unload(name)

    def _source(self, name: str) -> Source:
        source = self._sources.get(name)
        if source is None:
            raise self._missing(name, "")
        return source

    def _retire(self, versions: Mapping[str, LoadedModel]) -> None:
        with self._lock:
            over = [model for model in versions.values() if not model.in_flight]
            self._retired.update(model for model in versions.values() if model.in_flight)
        for model in over:
            model.close()


def _end(model: LoadedModel) -> None:
    """Close a model in a thread of its own: closing waits."""
    threading.Thread(target=model.close, name=f"close {model.name}").start()
