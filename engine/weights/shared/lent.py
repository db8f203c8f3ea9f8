"""A master's loan, as it goes to a slave: a description, and files as open descriptors."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.errors import SharingError
from engine.formats.opened import OpenedSource
from engine.plan.plan import CompiledForms
from engine.types import Capability, CompileOptions, ModelSource
from engine.weights.identity import identify, key_of, model_digest
from engine.weights.location import CacheUnusable
from engine.weights.store import Identity

if TYPE_CHECKING:
    from engine.backends import Backend
    from engine.weights.digests import Digests


@dataclass(frozen=True, slots=True, kw_only=True)
class LentWeights:
    """Weights that a backend lends by its vendor's means: see `engine.types.SharedWeights`.

    names: of its files.
    """

    nbytes: int
    token: bytes
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LentPart:
    """A model, or a part of one, that one backend compiled.

    identity: what its compiled form depends on. device: as `str(Device)`. names: paths of the
    form's files in its folder; () where nothing of it is lent and the slave compiles it itself.
    weights: those that the backend lends.
    """

    identity: Identity
    device: str
    names: tuple[str, ...] = ()
    weights: LentWeights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """All that is lent under one handle.

    title: the master's name of the model. folder: the one of the compile cache beside which the
    files lie. parts: their files come as descriptors, in this order: of each part those of its
    form, then those of its weights.
    """

    title: str
    folder: str
    parts: tuple[LentPart, ...]

    @property
    def count(self) -> int:
        """The number of files."""
        return sum(
            len(part.names) + (len(part.weights.names) if part.weights else 0)
            for part in self.parts
        )

    def to_bytes(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self), default=_text).encode()

    @classmethod
    def of(cls, data: bytes) -> Lent:
        """Read what `to_bytes` gives; ValueError, LookupError or TypeError for anything else."""
        read: Any = json.loads(data)
        return cls(
            title=str(read["title"]),
            folder=str(read["folder"]),
            parts=tuple(map(_part, read["parts"])),
        )


class Uncut(CompiledForms):
    """Keep no partitions of what is lent or borrowed: they are cut anew. See `CompiledForms`.

    digests: where those of models' files are remembered.
    """

    def __init__(self, digests: Digests) -> None:
        self.digests = digests

    def identified(self, source: ModelSource) -> ModelSource:
        """See CompiledForms: the parts that are cut of a model are known by its digest."""
        if not isinstance(source, OpenedSource) or source.graph is None or source.digest:
            return source
        try:
            return replace(source, digest=model_digest(self.digests, source))
        except OSError as error:
            raise SharingError(f"{source.name}: {error}") from error


def identity_of(
    digests: Digests, backend: Backend, source: ModelSource, options: CompileOptions
) -> Identity:
    """Return what a model's compiled form depends on. Raises SharingError for unreadable files."""
    key = {"backend": backend.name, "device": options.device.type}
    if options.devices:
        key["devices"] = str(len(options.devices))
    if not backend.lacks(Capability.COMPILE_CACHE, options.device):
        key = key_of(backend, options)
    try:
        return identify(digests, key, source)
    except CacheUnusable as error:
        raise SharingError(str(error)) from error


def _text(token: bytes) -> str:
    return base64.b64encode(token).decode("ascii")


def _part(read: Mapping[str, Any]) -> LentPart:
    identity, weights = read["identity"], read["weights"]
    key = {str(name): str(text) for name, text in identity["key"].items()}
    return LentPart(
        identity=Identity(str(identity["model"]), key),
        device=str(read["device"]),
        names=tuple(map(str, read["names"])),
        weights=weights
        and LentWeights(
            nbytes=int(weights["nbytes"]),
            token=base64.b64decode(weights["token"], validate=True),
            names=tuple(map(str, weights["names"])),
        ),
    )
