"""Lowered models in the compile cache: what a format makes of a file, made once per machine.

Lowering costs more than a runtime's start, so this entry is found before anything is decoded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.backends import warn_once
from engine.errors import ModelError
from engine.host.interrupts import raise_interrupt
from engine.weights.compile_cache import MIN_BYTES, CompileCache, Mode

if TYPE_CHECKING:
    from engine.formats.format import FormatFile
    from engine.formats.opened import OpenedSource
    from engine.weights.digests import Digests
    from engine.weights.store import Identity

_DIGESTS = "digests.json"


class _NotKept(Exception):
    """The model cannot be written: no error, but nothing for the cache."""

    def __init__(self, source: OpenedSource) -> None:
        super().__init__(source)
        self.source = source


class LoweredForms:
    """Lowered models as entries of a cache. See `formats.model_file`."""

    def __init__(self, cache: CompileCache) -> None:
        self._cache = cache

    def use(
        self,
        asked: FormatFile,
        version: str,
        lower: Callable[[], OpenedSource],
        check: Callable[[], None] | None = None,
    ) -> OpenedSource:
        """Return what `lower` makes; of the entry where there is one, else making it.

        version: of the format. check: called while another process is waited for; may raise.
        """
        cache = self._cache
        if cache.mode is Mode.OFF or (not cache.keeps_small and len(asked.data) < MIN_BYTES):
            return lower()
        import json

        from engine.formats import lowered
        from engine.weights.identity import model_digest
        from engine.weights.location import CacheUnusable
        from engine.weights.making import Work, found_or_made
        from engine.weights.store import Damaged, Outdated

        try:
            store = cache.store()
            try:
                identity = _identify(store.digests, asked, version)
            except OSError as error:
                raise CacheUnusable(f"{asked.path}: {error}") from error

            def read(folder: Path) -> OpenedSource:
                try:
                    said = json.loads((folder / _DIGESTS).read_text(encoding="utf-8"))
                    source = lowered.read(folder, asked, said["model"])
                    if _data_digests(store.digests, source) != said["data"]:
                        raise Outdated("its data files have changed")
                except lowered.OtherFiles as error:
                    raise Outdated(str(error)) from error
                except (OSError, ValueError, LookupError, TypeError, ModelError) as error:
                    raise Damaged(f"it cannot be read: {error}") from error
                return source

            def make(folder: Path | None) -> OpenedSource:
                source = lower()
                if not lowered.can_be_kept(source, asked):
                    raise _NotKept(source)
                if folder is not None:
                    lowered.write(source, asked, folder)
                    # As `read` gives it; and who compiles it does not hash its weights again.
                    source = replace(source, digest=model_digest(store.digests, source))
                    said = {"model": source.digest, "data": _data_digests(store.digests, source)}
                    (folder / _DIGESTS).write_text(json.dumps(said), encoding="utf-8")
                return source

            work = Work(
                identity=identity,
                title=asked.name,
                nbytes=len(asked.data),
                read=read,
                make=make,
                check=check,
                is_of_disk=lambda error: isinstance(error, OSError),  # others are the model's
            )
            return found_or_made(store, cache.mode.makes, work)
        except _NotKept as found:
            return found.source
        except CacheUnusable as error:
            raise_interrupt(error)
            warn_once(f"the compile cache is not used: {error}")
            return lower()


def of(config: Mapping[str, Mapping[str, str]]) -> LoweredForms:
    """Return where the lowered forms of files are kept, as a configuration asks for."""
    return LoweredForms(CompileCache.of(config))


def _identify(digests: Digests, asked: FormatFile, version: str) -> Identity:
    import hashlib
    import json

    from engine.formats.lowered import lowering_version
    from engine.weights.store import Identity

    if asked.path is not None and asked.version is not None and not isinstance(asked.data, bytes):
        model = digests.of(asked.path.resolve(), checked=asked.version)
    else:
        model = hashlib.sha256(asked.data).hexdigest()
    return Identity(
        model,
        {
            "backend": "(lowered)",
            "lowering": lowering_version(version),
            "variable weights": json.dumps(asked.variable_weights),
            # Tensors of a large file stay in it, and the lowered model names it.
            "name": "" if asked.path is None else os.path.basename(os.path.realpath(asked.path)),
        },
    )


def _data_digests(digests: Digests, source: OpenedSource) -> dict[str, str]:
    """Return the digests of a split model's data files, which may hold the state's first values."""
    found = {}
    for path, version in source.versions.items():
        assert source.folder is not None, "data files lie in a folder"
        file = path.resolve()
        found[os.path.relpath(file, source.folder.resolve())] = digests.of(file, checked=version)
    return found
