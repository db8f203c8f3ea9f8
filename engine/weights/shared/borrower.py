"""The build of a model with the weights of another process.

The files that the master gives come as descriptors. They get a name in a folder of this process's
own, as hard links, because runtimes open files by name and look at where these lie; the folder is
removed when the model is built. Mapped files stay: a slave outlives its master.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePath

from engine.backends import Backend
from engine.errors import CompiledFormError, SharingError
from engine.host.interrupts import raise_interrupt
from engine.plan.compile import compile_all
from engine.plan.plan import Compiled
from engine.types import (
    CancelToken,
    Capability,
    CompileOptions,
    LoadedModel,
    ModelSource,
    SharedWeights,
)
from engine.weights.location import CacheUnusable
from engine.weights.shared.broker import ask
from engine.weights.shared.handle_settings import HANDLE
from engine.weights.shared.lent import Lent, Uncut, identity_of
from engine.weights.shared.private import PrivateFolder
from engine.weights.store import Identity, Store

_TIMEOUT_S = 30.0


class Borrower(Uncut):
    """Compiled forms of a build, which another process lends: see `CompiledForms`.

    Raises SharingError where nobody lends under that handle, SharingRefused where not to us.
    """

    def __init__(self, handle: int, cancel: CancelToken | None = None) -> None:
        self._handle = handle
        self._has_borrowed = False
        check = cancel.check if cancel is not None else None
        record, descriptors = ask(handle, _TIMEOUT_S, check)
        with ExitStack() as on_failure:
            for descriptor in descriptors:
                on_failure.callback(os.close, descriptor)
            self._lent = _read(record, len(descriptors), handle)
            try:
                folder = Path(self._lent.folder)
                super().__init__(Store(folder).digests)
                self._folder = PrivateFolder(folder)
                on_failure.callback(self._folder.close)
                self._vendors = self._link(descriptors)
            except (CacheUnusable, OSError) as error:
                raise_interrupt(error)
                raise SharingError(
                    f"{HANDLE} {handle}: what the master lends cannot be named in "
                    f"{self._lent.folder!r}: {error}; master and slaves need the same compile "
                    "cache folder, and the master's model is to stay open until they are built"
                ) from error
            self._held = on_failure.pop_all()

    def _link(self, descriptors: Sequence[int]) -> Mapping[int, Mapping[str, Path]]:
        """Give the forms' files names, in a folder for each part.

        Returns for each part the files that its backend lends: these may lie in any file system,
        and are read by way of their descriptors.
        """
        given = map(_opened, descriptors)
        vendors = {}
        top = os.open(self._folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for number, part in enumerate(self._lent.parts):
                for name in part.names:
                    path = self._folder.path / f"{number}" / name
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    # With a folder's descriptor Python calls linkat(2), which follows this link.
                    os.link(next(given), path, dst_dir_fd=top, follow_symlinks=True)
                names = part.weights.names if part.weights is not None else ()
                vendors[number] = {name: next(given) for name in names}
        finally:
            os.close(top)
        return vendors

    def compiled(
        self,
        backend: Backend,
        source: ModelSource,
        options: CompileOptions,
        loaded: LoadedModel | None = None,
    ) -> Compiled:
        """Open the form that the master lends of this model."""
        identity = identity_of(self.digests, backend, source, options)
        device = str(options.device)
        fitting = (
            (number, part)
            for number, part in enumerate(self._lent.parts)
            if part.identity == identity and part.device == device
        )
        number, part = next(fitting, (-1, None))
        if part is None:
            raise SharingError(self._difference(identity, device, source.name))
        if part.names:
            source, loaded = replace(source, compiled=self._folder.path / f"{number}"), None
        if part.weights is not None:
            if reason := backend.lacks(Capability.SHARE_WEIGHTS, options.device):
                raise SharingError(f"{source.name}: cannot borrow weights: {reason}")
            weights = SharedWeights(
                backend=backend.name,
                device=options.device,
                nbytes=part.weights.nbytes,
                digest=identity.model,
                files=self._vendors[number],
                token=part.weights.token,
            )
            options = replace(options, shared_weights=weights)
        try:
            compiled = compile_all(backend, source, options, loaded)
        except CompiledFormError as error:  # a copy of its own is not what was asked for
            raise_interrupt(error)
            raise SharingError(
                f"{source.name}: the compiled form that the master lends cannot be used: {error}; "
                f"build the model without {HANDLE}"
            ) from error
        self._has_borrowed |= bool(part.names or part.weights)
        return compiled

    def _difference(self, identity: Identity, device: str, name: str) -> str:
        """Say what this model has other than what is lent."""
        lent = self._lent.parts
        same = [part for part in lent if part.identity.model == identity.model] or list(lent)
        part = next((part for part in same if part.device == device), same[0])
        backends = [key.get("backend", "") for key in (part.identity.key, identity.key)]
        if backends[0] != backends[1]:
            what = f"it is of backend {backends[0]!r}, and this model of {backends[1]!r}"
        elif part.device != device:
            what = f"it is on device {part.device!r}, and this model on {device!r}"
        elif part.identity.model != identity.model:
            what = "it is of a model with other content; build both from the same file"
        else:
            theirs, ours = part.identity.key, identity.key
            what = "; ".join(
                f"{key} is {theirs.get(key, '')!r} there and {ours.get(key, '')!r} here"
                for key in sorted({*theirs, *ours})
                if theirs.get(key) != ours.get(key)
            )
        return (
            f"{name}: {HANDLE} {self._handle} does not fit: what the master lends, of "
            f"{self._lent.title}, is another: {what}"
        )

    def finish(self, title: str) -> None:
        """Raise SharingError where the model was built without anything that is lent."""
        if not self._has_borrowed:
            raise SharingError(
                f"{title}: nothing of it is lent under {HANDLE} {self._handle}; build both from "
                "the same file, for the same targets"
            )

    def close(self) -> None:
        """Remove the names of the files; twice does nothing."""
        self._held.close()


def _read(record: bytes, count: int, handle: int) -> Lent:
    """Return what the master lends; SharingError where it is of another version than this one."""
    try:
        lent = Lent.of(record)
        if lent.count != count:
            raise ValueError(f"it lists {lent.count} files, and {count} came")
        paths = [PurePath(name) for part in lent.parts for name in part.names]
        if any(path.is_absolute() or ".." in path.parts for path in paths):
            raise ValueError("it names a file outside its folder")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SharingError(
            f"{HANDLE} {handle}: what the master says cannot be read: {error!r}; run the same "
            "version of inference-engine in both processes"
        ) from error
    return lent


def _opened(descriptor: int) -> Path:
    """Return a path by which this process opens the file of a descriptor."""
    return Path(f"/proc/self/fd/{descriptor}")
