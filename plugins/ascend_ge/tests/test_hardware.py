"""On a real NPU: skipped, with the reason, where there is none. Not yet run by anyone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.backends import open_backend
from engine.formats import open_source
from engine.testing import models
from engine.types import CompileOptions
from engine_ascend_ge import engine_diagnose

pytestmark = pytest.mark.device("ascend_ge")


@pytest.mark.parametrize(
    ("kind", "counts"), [("fixed", [4]), ("gears", [4, 1, 16, 4]), ("open", [2, 7, 1])]
)
def test_an_affine_model_is_exact_in_every_kind_of_shape(
    tmp_path: Path,
    options: Callable[..., CompileOptions],
    sized: Callable[..., dict[str, Any]],
    geared: Callable[..., dict[str, Any]],
    kind: str,
    counts: list[int],
) -> None:
    fields = {
        "fixed": sized(x=(4, 3)),
        "gears": geared(*({"x": (size, 3)} for size in (1, 4, 16))),
        "open": {},
    }[kind]
    backend = open_backend("ascend_ge")
    wish = options(**fields)
    loaded = backend.load(open_source(str(models.affine(tmp_path))), wish)
    executable = backend.compile(loaded, wish)
    try:
        contexts: list[Any] = [executable.open_context() for _ in range(2)]
        for context in contexts:
            for count in counts:
                x = np.arange(3 * count, dtype=np.float32).reshape(count, 3)
                [y] = backend.predict(context, [x], None, None)
                np.testing.assert_array_equal(y, 2 * x + 1)
            context.close()
    finally:
        executable.close()


def test_the_machine_passes_its_diagnosis() -> None:
    assert [check for check in engine_diagnose() if not check.ok] == []
