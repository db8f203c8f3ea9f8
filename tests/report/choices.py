"""Backends whose speeds are given, and builds with target auto that choose between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from graphs import written

import engine
from engine import Model
from engine.report.choice import duel, keeping
from engine.report.choice.evidence import Evidence, Trial, read
from engine.weights.store import Store

Install = Callable[..., ModuleType]
X = np.arange(6, dtype=np.float32).reshape(2, 3)
CONFIG: dict[str, dict[str, Any]] = {"common_context": {"auto_budget_s": "1000"}}

WRONG = """
@hookimpl
def engine_predict(context, inputs, outputs, deadline_s):
    return [result + 1 for result in context.run(inputs, outputs, deadline_s)]
"""


class Speeds:
    """The ratios that comparisons give, by the backend or setting; and the setups compared.

    of: by backend, ratios one after the other, the last for all later ones. compared: by which the
    candidates were known.
    """

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = {}
        self.compared: list[str] = []
        self.raises: BaseException | None = None

    def duel(self, default: Any, candidate: Any, *_: Any, **__: Any) -> duel.Duel:
        setup = candidate.func.__self__
        name = next(iter(setup.nodes()))
        self.compared.append(name)
        if self.raises is not None:
            raise self.raises
        ratios = self.of.get(name, [1.0])
        ratio = ratios.pop(0) if len(ratios) > 1 else ratios[0]
        return duel.Duel(1.0, ratio, ratio, ratio, 7)


def saved(folder: Path, graph: str) -> Path:
    """Write a graph that is written as ONNX's text format writes it, without its name."""
    return written(folder / "net.onnx", f"net {graph}")


def build(path: Path, **more: Any) -> Model:
    """Build with target auto and no memory of earlier builds but the cache."""
    keeping._known.clear()
    return engine.load(path, target="auto", **{"config": CONFIG, "threads": 1, **more})


def where(model: Model) -> str:
    return model.placement[0].backend


def evidence_of(tmp_path: Path) -> Evidence:
    [entry] = Store(tmp_path / "cache").entries()
    assert entry.identity.key["backend"] == "(choice)"
    return read((entry.form / "evidence.json").read_bytes())


def trials_of(tmp_path: Path) -> dict[str, Trial]:
    return {str(trial.setup): trial for trial in evidence_of(tmp_path).trials}
