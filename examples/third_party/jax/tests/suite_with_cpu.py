"""Run onnx's suite on `["jax", "cpu"]`: python suite_with_cpu.py; `--cpu` for cpu alone."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from engine_testing.onnx_backend import Backend
from engine_testing.onnx_suite import Case, load_cases, run_case
from engine_testing.onnx_suite.pool import each

_settings = Backend._settings.__func__


def both(cls: Any, device: str) -> Any:
    context, config = _settings(cls, device)
    context.target = ["jax", "cpu"]
    return context, config


def on_both(case: Case) -> Any:
    Backend._settings = classmethod(both)
    return run_case("jax", case)


def on_cpu(case: Case) -> Any:
    return run_case("cpu", case)


if __name__ == "__main__":
    run = on_cpu if "--cpu" in sys.argv else on_both
    answers = [(case, answer) for case, answer in each(run, load_cases(), workers=2, limit_s=300)]
    counts = Counter(str(getattr(answer, "status", "died")) for _, answer in answers)
    for case, answer in answers:
        if str(getattr(answer, "status", "died")) in ("wrong", "failed", "died"):
            print(case.name, getattr(answer, "reason", answer))
    print(dict(counts))
