"""RapidOCR's default pipeline: three models, which its wheel ships, run by `engine`.

The same as with ONNX Runtime itself must come out: the texts, the boxes, the scores.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

PACKAGE = "rapidocr_onnxruntime"
LINES = ["Inference engine", "reads 3 lines of text", "HELLO WORLD 2048"]

pytestmark = pytest.mark.skipif(
    find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed: tox -e programs"
)

Reader = Callable[[Any], tuple[list[Any], Any]]
"""The program's pipeline: an image -> a box, text and score for each line, and the times."""


@pytest.fixture(scope="module")
def image() -> np.ndarray[Any, Any]:
    """Three lines of black text on white, the second upside down."""
    page = Image.new("RGB", (640, 320), "white")
    font = ImageFont.load_default(size=40)
    for number, line in enumerate(LINES):
        strip = Image.new("RGB", (600, 60), "white")
        ImageDraw.Draw(strip).text((10, 5), line, fill="black", font=font)
        page.paste(strip.rotate(180) if number == 1 else strip, (20, 20 + 95 * number))
    return np.asarray(page)


def reader(monkeypatch: pytest.MonkeyPatch, runtime: ModuleType) -> Reader:
    """Import the program anew with `runtime` in place of onnxruntime, and make its pipeline."""
    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "onnxruntime", runtime)
        pipeline: Callable[[], Reader] = importlib.import_module(PACKAGE).RapidOCR
    # The cpu backend imports onnxruntime where it needs it: from here on the real one again.
    return pipeline()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return importlib.import_module("onnxruntime_stand_in")


def test_its_default_pipeline_reads_what_it_reads_with_onnxruntime(monkeypatch, image, stand_in):
    import onnxruntime

    before = stand_in.InferenceSession.made
    found, _ = reader(monkeypatch, stand_in)(image)
    assert stand_in.InferenceSession.made == before + 3
    expected, _ = reader(monkeypatch, onnxruntime)(image)
    assert stand_in.InferenceSession.made == before + 3
    assert [text for _, text, _ in found] == [text for _, text, _ in expected]
    read = {text.replace(" ", "").lower() for _, text, _ in found}
    assert read >= {line.replace(" ", "").lower() for line in LINES}
    for (box, _, score), (wanted_box, _, wanted_score) in zip(found, expected, strict=True):
        np.testing.assert_allclose(box, wanted_box, atol=1e-3)
        assert float(score) == pytest.approx(float(wanted_score), abs=1e-5)
