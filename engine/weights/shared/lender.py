"""The build of a model that lends its weights to other processes.

The loan is the compiled form that the model is built from: that of the compile cache, or where
the cache does not keep this model one in a private folder. Its files are linked into a folder of
this process's own, so that they have a name for as long as the model lives, whatever becomes of the
cache. A backend that has means of its vendor's (SHARE_WEIGHTS) lends by these too.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine.backends import Backend, warn_once
from engine.backends.attribution import attribute_errors_to
from engine.errors import SharingError
from engine.host.interrupts import pass_interrupt
from engine.plan.compile import compile_all
from engine.plan.contexts import close
from engine.plan.plan import Compiled
from engine.types import (
    Capability,
    CompileOptions,
    Executable,
    LoadedModel,
    ModelSource,
    SharedWeights,
)
from engine.weights.compile_cache import CompileCache
from engine.weights.location import CacheUnusable
from engine.weights.shared.broker import Broker, PidList
from engine.weights.shared.handle_settings import PIDS
from engine.weights.shared.lent import Lent, LentPart, LentWeights, Uncut, identity_of
from engine.weights.shared.private import PrivateFolder
from engine.weights.store import Identity, Store

if TYPE_CHECKING:
    from engine.model.group_forms import GroupForms

# Read-only for its owner too: nobody writes to what others have mapped by mistake.
_MODE = 0o400


class Loan:
    """Weights that are lent, until it is closed. handle: what slaves ask for them by."""

    def __init__(self, broker: Broker, held: ExitStack, is_vendors: bool) -> None:
        self.handle = str(broker.handle)
        self.is_vendors = is_vendors
        """True where slaves use memory of this process's executable."""
        self._held = held

    def close(self) -> None:
        """End the loan: nobody borrows any more. Mapped files stay; twice does nothing."""
        self._held.close()


@dataclass(slots=True)
class _Part:
    """A part that was compiled. form: where its files are, None for none; why: why there are none.

    shared: what the backend lends of it.
    """

    identity: Identity
    device: str
    form: Path | None = None
    why: str = ""
    shared: SharedWeights | None = None


class Lender(Uncut):
    """Compiled forms of a build whose weights are lent: see `engine.plan.plan.CompiledForms`.

    pids: of the processes that may borrow. cache: beside which what is lent lies. forms: where the
    forms are kept otherwise, in that cache or beside it.
    Raises SharingError for a pid that no process has, or where nothing can be kept for others.
    """

    def __init__(
        self, pids: tuple[int, ...], cache: CompileCache, forms: CompileCache | GroupForms
    ) -> None:
        self._forms = forms
        self._parts: list[_Part] = []
        with ExitStack() as on_failure:
            self._listed = PidList(pids)
            on_failure.callback(self._listed.close)
            try:
                self._store = cache.store()
                super().__init__(self._store.digests)
                self._folder = _private_folder(self._store)
            except CacheUnusable as error:
                raise SharingError(f"{PIDS}: no folder for what is lent: {error}") from error
            on_failure.callback(self._folder.close)
            self._held = on_failure.pop_all()

    def compiled(
        self,
        backend: Backend,
        source: ModelSource,
        options: CompileOptions,
        loaded: LoadedModel | None = None,
    ) -> Compiled:
        """Compile a model, and keep what it was made of for the slaves."""
        has_means = not backend.lacks(Capability.SHARE_WEIGHTS, options.device)
        if source.is_secret and not has_means:
            raise SharingError(
                f"{source.name}: is encrypted, and nothing of it is written to disk, so its "
                f"weights cannot be lent by backend {backend.name!r}; build it in each process "
                f"without {PIDS}, or lend an unencrypted model"
            )
        identity = identity_of(self.digests, backend, source, options)
        part = _Part(identity, str(options.device))
        if has_means:
            options = replace(options, lend="machine")
        build = partial(self._build, part)
        executable, unsupported = self._forms.compiled(backend, source, options, loaded, build)
        try:
            if executable is None:
                part.form = None  # others compile its nodes
            elif has_means:
                part.shared = self._share(backend, executable, identity)
            elif not backend.lacks(Capability.DEVICE_BUFFERS, options.device):
                warn_once(
                    f"weights in the memory of {str(options.device)!r} are not shared: backend "
                    f"{backend.name!r} has no means for that, so each process has its own there; "
                    "what is shared is the compiled model"
                )
        except BaseException:
            if executable is not None:
                close(executable)
            raise
        self._parts.append(part)
        return executable, unsupported

    def _build(
        self,
        part: _Part,
        backend: Backend,
        source: ModelSource,
        options: CompileOptions,
        loaded: LoadedModel | None = None,
    ) -> Compiled:
        """Build, and link the form that was read or written into the folder of this process."""
        part.form, part.why = None, ""
        folder = self._folder.path / str(len(self._parts))
        shutil.rmtree(folder, ignore_errors=True)  # of a form that turned out to be damaged
        if source.is_secret:
            part.why = "it is encrypted, and nothing of it is written to disk"
        elif source.graph is None:
            part.why = "it is a compiled form itself"
        else:
            part.why = backend.lacks(Capability.COMPILE_CACHE, options.device)
        written = source.compiled or options.save_to
        if written is None and not part.why:
            folder.mkdir(mode=0o700)
            written = folder
            options = replace(options, save_to=folder)
            loaded = None  # a form is written while a model is loaded, by a load of its own
        executable, unsupported = compile_all(backend, source, options, loaded)
        if written is not None:
            if written != folder:
                try:
                    _link(written, folder)
                    for name in _names(written) if source.compiled is not None else ():
                        # Known from now on with one link more: nothing else of it has changed.
                        self.digests.of(written / name, is_ours=True)
                except BaseException:
                    if executable is not None:
                        close(executable)
                    raise
            if _names(folder):
                part.form = folder
            else:
                part.why = f"backend {backend.name!r} has no compiled form of it"
        return executable, unsupported

    def _share(self, backend: Backend, executable: Executable, identity: Identity) -> SharedWeights:
        with attribute_errors_to(backend, "engine_share_weights"):
            share = backend.bind("engine_share_weights")
            shared: SharedWeights = share(executable, self._listed.pids)
            if not isinstance(shared, SharedWeights):
                raise TypeError(f"it returned {shared!r}, which is no SharedWeights")
        close = getattr(shared.owner, "close", None)
        if close is not None:
            self._held.callback(close)
        return replace(shared, digest=identity.model)

    def finish(self, title: str) -> Loan:
        """Lend what was built from now on. title: the model, in messages.

        Raises SharingError where nothing of it can be lent.
        """
        if not any(part.form or part.shared for part in self._parts):
            why = "; ".join(dict.fromkeys(part.why for part in self._parts if part.why))
            raise SharingError(
                f"{title}: its weights cannot be lent: "
                f"{why or 'it runs in parts, on several backends'}; build it without {PIDS}"
            )
        parts, files = [], []
        for part in self._parts:
            names = _names(part.form) if part.form is not None else []
            own = [part.form / name for name in names if part.form is not None]
            for path in own:
                if stat.S_IMODE(path.stat().st_mode) != _MODE:  # else it would look changed
                    path.chmod(_MODE)
            weights = None
            if shared := part.shared:
                weights = LentWeights(
                    nbytes=shared.nbytes, token=shared.token, names=tuple(shared.files)
                )
                own += shared.files.values()
            files += own
            parts.append(
                LentPart(
                    identity=part.identity, device=part.device, names=tuple(names), weights=weights
                )
            )
        beside = self._folder.path.parents[2]  # a cache's, in which the slaves name the files too
        lent = Lent(title=title, folder=str(beside), parts=tuple(parts))
        try:
            broker = Broker(self._listed, lent.to_bytes(), files)
        except OSError as error:
            pass_interrupt(error)
            raise SharingError(f"{title}: its weights cannot be lent: {error}") from error
        held = self._held.pop_all()
        held.callback(broker.close)  # the first to go
        return Loan(broker, held, any(part.shared for part in self._parts))

    def close(self) -> None:
        """Let go of what `finish` has not lent; twice does nothing."""
        self._held.close()


def _private_folder(store: Store) -> PrivateFolder:
    """Make a folder beside the cache; beside another where that is read-only.

    Raises CacheUnusable.
    """
    try:
        return PrivateFolder(store.folder.parent)
    except CacheUnusable:
        if not store.is_read_only:
            raise
    try:
        return PrivateFolder()
    except CacheUnusable:
        return PrivateFolder(Path(tempfile.gettempdir()) / f"inference-engine-{os.geteuid()}")


def _link(form: Path, folder: Path) -> None:
    """Give the files of a form a second name in a folder. Raises SharingError."""
    try:
        folder.mkdir(mode=0o700)
        for name in _names(form):
            path = folder / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                os.link(form / name, path)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EROFS):
                    raise
                shutil.copyfile(form / name, path)  # from the disk of a read-only cache
    except OSError as error:
        pass_interrupt(error)
        raise SharingError(
            f"{PIDS}: {str(form)!r} cannot be lent: {error.strerror}; the compile cache must lie "
            "on a file system with hard links: set ENGINE_CACHE_DIR"
        ) from error


def _names(folder: Path) -> list[str]:
    """Return the paths of the files in a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
