"""Identity of an entry of the compile cache: the model's content, and its backend's key."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.backends import Backend
from engine.backends.attribution import attribute_errors_to
from engine.formats.opened import OpenedSource
from engine.host.paths import absolute
from engine.types import CompileOptions, ModelSource

if TYPE_CHECKING:
    from engine.weights.digests import Digests
    from engine.weights.store import Identity

_SAMPLES = 4096


def key_of(backend: Backend, options: CompileOptions) -> dict[str, str]:
    """Return what an entry depends on beside the model, as text by name.

    This package's version is not part of it: what a backend gets of a model, lowered or made
    regular, is what the model's digest is of.
    """
    with attribute_errors_to(backend, "engine_compiled_key"):
        own: Mapping[str, str] = backend.bind("engine_compiled_key")(options)
    key = {f"{backend.name}: {name}": text for name, text in own.items()}
    key |= {"backend": backend.name, "device": options.device.type}
    if options.devices:
        key["devices"] = str(len(options.devices))
    if options.variable_weights:  # a form in which others are constants is another one
        key["variable weights"] = json.dumps(options.variable_weights)
    return key


def identify(digests: Digests, key: Mapping[str, str], source: ModelSource) -> Identity:
    """Return what an entry depends on. Raises CacheUnusable where the model cannot be read."""
    from engine.weights.location import CacheUnusable
    from engine.weights.store import Identity

    if isinstance(source, OpenedSource) and source.passes:
        key = {**key, "passes": ", ".join(source.passes)}
    try:
        return Identity(model_digest(digests, source), key)
    except OSError as error:
        raise CacheUnusable(f"{source.name}: {error}") from error


def sketch(key: Mapping[str, str], source: ModelSource) -> str:
    """Return a name for a model and its key that costs no hashing of its weights.

    For what may be wrong at times: another model hardly ever has the same. The same whether its
    digest is known yet or not, where it is in a file.
    """
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode())
    if isinstance(source, OpenedSource) and source.digest and source.files:
        digest.update(source.digest.encode())
        return digest.hexdigest()
    versions = source.versions if isinstance(source, OpenedSource) else {}
    files = sorted((str(absolute(path)), version) for path, version in versions.items())
    digest.update(repr(files).encode())
    for location, content in {"": source.data or b"", **source.files}.items():
        view = memoryview(content).cast("B")
        digest.update(f"{location!r} {len(view)} ".encode())
        digest.update(bytes(view[:: len(view) // _SAMPLES + 1]))
    return digest.hexdigest()


def model_digest(digests: Digests, source: ModelSource) -> str:
    """Return a digest of all that a model consists of: its graph, its external data.

    Raises OSError where a file cannot be read, or is not the one that was checked.
    """
    if isinstance(source, OpenedSource) and source.digest:
        return source.digest
    versions = source.versions if isinstance(source, OpenedSource) else {}
    if source.data is not None:
        graph = hashlib.sha256(source.data).hexdigest()
    else:
        assert source.path is not None, "a model is in a file or in memory"
        graph = digests.of(source.path.resolve(), checked=versions.get(source.path))
    parts = {"": graph}
    if source.path in versions and source.data is not None:  # weights are left in the file
        assert source.path is not None
        parts["its file"] = digests.of(source.path.resolve(), checked=versions[source.path])
    are_mapped = isinstance(source, OpenedSource) and source.are_mapped
    for location, content in source.files.items():
        if not are_mapped:
            parts[location] = hashlib.sha256(content).hexdigest()
    if source.folder is not None:
        folder = os.path.realpath(source.folder)
        for path in versions.keys() - {source.path}:
            file = path.resolve()
            parts[os.path.relpath(file, folder)] = digests.of(file, checked=versions[path])
        # Links in the folder say which of these files is read for which tensor.
        for location in {info.location for info in source.graph.parameters} if source.graph else ():
            real = os.path.realpath(os.path.join(folder, location))
            if location and real != os.path.join(folder, os.path.normpath(location)):
                parts[f"{location} ->"] = os.path.relpath(real, folder)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
