"""Explain for a model whether the compile cache has it, and what differs where it has not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.plan.plan import Candidate
from engine.weights.compile_cache import (
    IS_SMALL,
    MIN_BYTES,
    CompileCache,
    weights_bytes,
    weights_text,
)
from engine.weights.identity import identify, key_of, sketch
from engine.weights.store import Damaged, Entry

if TYPE_CHECKING:
    from engine.backends import Backend
    from engine.types import CompileOptions, ModelSource


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry of the same model that does not fit, and why: by name what it has and what it needs.

    "" stands for a name that one of them does not have.
    """

    entry: Entry
    names: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reason why the next build of a model is warm or cold.

    reason: one sentence. entry: the one that fits. others: of the same model with other keys.
    """

    reason: str
    is_warm: bool = False
    entry: Entry | None = None
    others: tuple[Difference, ...] = ()


def explain(
    cache: CompileCache, backend: Backend, source: ModelSource, options: CompileOptions
) -> Explanation:
    """Return why the next build of a model is warm or cold.

    Raises CacheUnusable where the model cannot be read.
    """
    if reason := cache.why_unused(backend, source, options):
        return Explanation(reason)
    if cache.has(cache.identified(source), Candidate(backend, options).key()):
        return Explanation("several backends run it; its partition is kept, and so are parts", True)
    store = cache.store()
    key = key_of(backend, options)
    identity = identify(store.digests, key, source)
    others = [
        Difference(entry, _differences(entry.identity.key, identity.key))
        for entry in store.entries()
        if entry.identity.model == identity.model and entry.identity != identity
    ]
    stays = ""
    if cache.mode.makes and store.is_read_only:
        stays = f"; it stays cold: {str(store.folder)!r} is read-only"
    found = None
    if store.version(identity) is not None:  # a read-only folder has locks of its entries alone
        with store.locked(identity.name, shared=True):
            try:
                found = store.find(identity)
            except Damaged as error:
                anew = "" if stays else " and will be made anew"
                return Explanation(f"its entry is damaged{anew}: {error}{stays}")
    if found is not None:
        return Explanation("it has an entry, which fits", True, found, tuple(others))
    sketched = sketch(key, source)
    if store.is_held(sketched):
        return Explanation("a process is writing its entry", others=tuple(others))
    if store.is_formless(sketched):
        return Explanation(
            f"backend {backend.name!r} wrote no compiled form when it was built last",
            others=tuple(others),
        )
    if others:
        reason = "its entries were made with something else"
    elif weights_bytes(source) < MIN_BYTES:
        reason = f"it has no entry: its weights are {weights_text(source)}, and {IS_SMALL}"
    else:
        reason = "it has no entry: it was not built yet, or was built with other contents"
    return Explanation(f"{reason}{stays}", others=tuple(others))


def _differences(had: Mapping[str, str], needed: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    return {
        name: (had.get(name, ""), needed.get(name, ""))
        for name in {**had, **needed}
        if had.get(name) != needed.get(name)
    }
