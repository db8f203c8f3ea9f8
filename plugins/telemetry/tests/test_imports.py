"""The packages of others come when an extension is made, and the error says how to get them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import engine


def test_importing_an_extension_imports_no_other_package() -> None:
    code = (
        "import sys\n"
        "from engine_telemetry import opentelemetry, prometheus, recorder\n"
        "print(sorted({'opentelemetry', 'prometheus_client', 'click'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "module", "option"),
    [
        ("prometheus", "prometheus_client", {"max_models": "77"}),
        ("opentelemetry", "opentelemetry.context", {"traces": "1", "metrics": "1"}),
    ],
)
def test_without_its_package_the_error_says_how_to_get_it(
    name: str,
    module: str,
    option: dict[str, str],
    affine: Path,
    load: Callable[..., engine.Model],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    wanted = rf'extension {name!r} needs the package .*"inference-engine-telemetry\[{name}\]"'
    with pytest.raises(engine.ExtensionError, match=wanted):
        load(affine, name, **option)  # options that no other test has: it is made anew
