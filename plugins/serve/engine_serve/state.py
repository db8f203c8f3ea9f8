"""The models as the page in the browser shows them, with what is counted of them now."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from engine.errors import ModelStateError
from engine_serve.errors import NotFound, Unavailable
from engine_serve.loaded import LoadedModel
from engine_serve.service import Service


class State:
    """The state of a server's models. For the event loop's thread."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def read(self) -> dict[str, Any]:
        """Return all models and versions as they are now."""
        loaded = {(each.name, each.version): each for each in self._service.repository.loaded()}
        models = []
        for line in self._service.index():
            model = loaded.get((line["name"], line.get("version", "")))
            about: dict[str, Any] = {}
            if model is not None:
                with suppress(NotFound, Unavailable, ModelStateError):  # it is being unloaded
                    about = self._about(model)
            models.append({**line, **about})
        return {"ready": self._service.is_ready, "models": models}

    def _about(self, model: LoadedModel) -> dict[str, Any]:
        counted = model.runner.statistics()
        return {
            **self._service.model_metadata(model.name, model.version),
            "labels": model.labels,
            "placement": model.placement,
            "waiting": counted.waiting,
            "running": counted.running,
            "completed": counted.completed,
            "failed": counted.failed + counted.expired + counted.cancelled,
            "refused": counted.refused + model.own.refused,
            "latency_ms": model.own.latencies.buckets(),
        }
