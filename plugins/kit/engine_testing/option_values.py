"""A fresh process that builds a model once for each value of an option, and notes what is refused.

`python -m engine_testing.option_values ORDER ANSWER`: started by `settings.py`. A value may be for
good, as one that has a runtime make its threads for the whole process: no other test is to run
where it was tried. ORDER is pickled by the parent. ANSWER gets a line of JSON for each value, as
it is tried: why it is refused, or null.
"""

from __future__ import annotations

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

from engine.backends import Backend, open_backend
from engine.errors import EngineError
from engine.types import CompileOptions, ModelSource


def run(order: Path, answer: Path) -> None:
    """Try the values that the order names."""
    name, source, options, asked = pickle.loads(order.read_bytes())
    backend = open_backend(name)
    with answer.open("w", encoding="utf-8") as lines:
        for option, value in asked:
            refusal = _refusal(backend, source, replace(options, options={option: value}))
            print(json.dumps(refusal), file=lines, flush=True)


def _refusal(backend: Backend, source: ModelSource, options: CompileOptions) -> str | None:
    """Return why a value is not understood; None where it is."""
    try:
        loaded = backend.load(source, options)
        try:
            backend.compile(loaded, options).close()
        finally:
            loaded.close()
    except EngineError:
        return None  # understood, but this machine or this model cannot have it
    except ValueError as error:
        return str(error)
    return None


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]))
