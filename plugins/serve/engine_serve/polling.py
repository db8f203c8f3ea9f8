"""Loads models whose files are new or have changed, as Triton does with `poll`."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TypeAlias

from engine.types import CancelToken
from engine_serve.folder import Source
from engine_serve.repository import Repository

_log = logging.getLogger("engine_serve")

Mark: TypeAlias = "frozenset[tuple[str, int, int, int, int]]"


class Polling:
    """What was loaded of each model's files. `look` is for one thread, again and again."""

    def __init__(self, repository: Repository) -> None:
        """Take the files that are there as those that are loaded."""
        self._repository = repository
        self._loaded = _marks(repository)
        self._seen = self._loaded

    def look(self) -> None:
        """Load what is new and what has changed, but for what a request has unloaded.

        Files must be the same in two looks: else somebody still writes them. A model that cannot be
        loaded is tried again when its files have changed; the log has the error.
        """
        before, self._seen = self._seen, _marks(self._repository)
        self._loaded = {name: self._loaded[name] for name in self._loaded.keys() & self._seen}
        for name, mark in self._seen.items():
            is_settled = before.get(name) == mark
            if not is_settled or self._loaded.get(name) == mark:
                continue
            self._loaded[name] = mark
            with suppress(Exception):  # it is logged
                self._repository.load(name, is_asked=False)

    def run(self, every_s: float, over: CancelToken) -> None:
        """Look again and again until `over` is cancelled."""
        ended = threading.Event()
        with over.watch(ended.set):
            while not ended.wait(every_s):
                try:
                    self.look()
                except Exception:
                    _log.exception("the look for new models failed")


def _marks(repository: Repository) -> dict[str, Mark]:
    sources: dict[str, Source] = {**repository.refresh()}
    return {name: source.mark() for name, source in sources.items()}
