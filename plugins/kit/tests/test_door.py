"""`engine.testing`, the kit's older name."""

from __future__ import annotations

import subprocess
import sys

import engine_testing
from engine import testing

WITHOUT_KIT = """
import sys
sys.modules["engine_testing"] = None
from engine.testing import models
"""


def test_it_hands_on_what_the_kit_has() -> None:
    assert testing.BackendConformance is engine_testing.BackendConformance
    assert testing.models is engine_testing.models


def test_without_the_kit_it_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_KIT], capture_output=True, text=True, check=False
    )
    assert "the conformance kit is not installed; run: pip install" in done.stderr
