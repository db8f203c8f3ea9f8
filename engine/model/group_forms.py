"""Sharing among the models of a group, and the place of their compiled forms for that.

Weights are shared by content: forms of different models are in one place, in which equal tensors
are one file, and every process maps the same pages. That is the compile cache's doing; a group asks
for it whatever the size of its models. Where no cache is written, they are in a private one, which
lives as long as a model that was built with it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.backends import warn_once
from engine.plan.compile import compile_all
from engine.types import Capability
from engine.weights.compile_cache import Build, CompileCache, T, mode_of

if TYPE_CHECKING:
    from engine.backends import Backend
    from engine.plan.plan import Compiled, Plan
    from engine.types import CompileOptions, LoadedModel, ModelSource
    from engine.weights.shared.private import PrivateCache

# A model whose own weights take less than a page shares nothing worth a word.
_LEAST_BYTES = 4096

# Of builds in groups. Reentrant: a progress callback may build another model.
_turn = threading.RLock()


class Sharing:
    """Things that a group's models have in common. For any number of threads.

    weights, workspace: whether they share these. workspace_bytes: what the largest of them needs
    for its activations, as far as it was measured.
    """

    def __init__(self, *, weights: bool, workspace: bool) -> None:
        self.weights = weights
        self.workspace = workspace
        self.workspace_bytes = 0
        # Weak: the models hold it, and it ends with the last of them.
        self._private: dict[Path | None, weakref.ref[PrivateCache]] = {}

    def forms(self, config: Mapping[str, Mapping[str, str]]) -> GroupForms:
        """Return where the forms of one more model are kept; to be held as long as the model.

        Raises ValueError for a setting.
        """
        with _turn:
            return self._forms(config)

    def _forms(self, config: Mapping[str, Mapping[str, str]]) -> GroupForms:
        cache = CompileCache.of(config)
        if not self.weights:
            return GroupForms(cache, is_lending=False)
        if mode_of(config).makes:
            return GroupForms(CompileCache(cache.folder, keeps_small=True))
        from engine.weights.location import CacheUnusable
        from engine.weights.shared.private import PrivateCache

        held = self._private.get(cache.folder)
        private = None if held is None else held()
        if private is None:
            try:
                private = PrivateCache(cache.folder)
            except CacheUnusable as error:
                return GroupForms(cache, f"there is no place for them: {error}")
            self._private[cache.folder] = weakref.ref(private)
        return GroupForms(private)

    def why_unshared(self, plan: Plan, forms: GroupForms) -> str:
        """Return why a model that was built shares no weights, and say it once; "" if it does."""
        if not self.weights:
            return ""
        reports = [(name, report) for name, _, report in plan.memory()]
        alone = [
            name
            for name, report in reports
            if name
            and report.weights_bytes >= _LEAST_BYTES
            and report.mapped_bytes + report.shared_bytes == 0
        ]
        if not alone:
            return ""
        reason = forms.why_not or f"backend {alone[0]!r} holds a copy of them for each model"
        warn_once(f"{plan.source.name}: its weights are not shared with its group: {reason}")
        return reason

    def why_alone(self, plan: Plan) -> str:
        """Return why a model that may share its weights shares none now; "" where it does."""
        reports = [report for _, _, report in plan.memory()]
        total_bytes = sum(report.weights_bytes + report.mapped_bytes for report in reports)
        if not total_bytes or any(report.shared_bytes for report in reports):
            return ""
        if total_bytes < _LEAST_BYTES:
            return f"they are {total_bytes:,} bytes, too few to be shared"
        return (
            "no other open model has them, or enough of them: on cpu, different models share what "
            "they have in common where that is 1 MiB or more"
        )


class GroupForms:
    """The compiled forms of one model of a group, among those of the others. See CompiledForms.

    why_not: after the build, why it has none there; "" where it has. is_lending: backends that
    share weights in their devices' memory are to do so.
    """

    def __init__(self, cache: CompileCache, why_not: str = "", *, is_lending: bool = True) -> None:
        self._cache = cache
        self._is_lending = is_lending
        self.why_not = why_not

    def compiled(
        self,
        backend: Backend,
        source: ModelSource,
        options: CompileOptions,
        loaded: LoadedModel | None = None,
        build: Build = compile_all,
    ) -> Compiled:
        """See CompileCache."""
        self.why_not = self.why_not or self._cache.why_unused(backend, source, options)
        if self._is_lending and not backend.lacks(Capability.SHARE_WEIGHTS, options.device):
            options = replace(options, lend="process")
        with _turn:  # of two that are written at once, neither would find the other's tensors
            return self._cache.compiled(backend, source, options, loaded, build)

    def identified(self, source: ModelSource) -> ModelSource:
        """See CompiledForms."""
        return self._cache.identified(source)

    def has(self, source: ModelSource, key: Mapping[str, str]) -> bool:
        """See CompiledForms."""
        return self._cache.has(source, key)

    def find(
        self, source: ModelSource, key: Mapping[str, str], read: Callable[[Path], T]
    ) -> T | None:
        """See CompiledForms."""
        return self._cache.find(source, key, read)

    def keep(
        self, source: ModelSource, key: Mapping[str, str], write: Callable[[Path], None]
    ) -> None:
        """See CompiledForms."""
        self._cache.keep(source, key, write)


def _forget() -> None:
    """In a forked child, which has one thread: nobody holds the lock."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_forget)
