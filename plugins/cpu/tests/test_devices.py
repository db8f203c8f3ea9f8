"""The backend's facts about the machine, also where onnxruntime is not as it should be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import engine_cpu.runtime
from engine_cpu import engine_devices, engine_diagnose

DAMAGED = {
    "": "onnxruntime is damaged: AttributeError: module 'onnxruntime' has no attribute 'get_avail",
    "raise ImportError('libx.so.1: no such file')": "onnxruntime cannot be imported: ImportError: "
    "libx.so.1: no such file",
    "raise OSError('no space left')": "onnxruntime is damaged: OSError: no space left",
    "__version__ = '1.23.0'\ndef get_available_providers(): return ['QNNExecutionProvider']": (
        "onnxruntime 1.23.0 was built without its CPU provider"
    ),
}


@pytest.mark.parametrize(("source", "reason"), DAMAGED.items())
def test_a_damaged_onnxruntime_is_an_answer_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime/__init__.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [each for each in sys.modules if each.partition(".")[0] == "onnxruntime"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, engine_cpu.runtime.__name__)  # imports it anew
    devices = engine_devices()
    assert devices.found == ()
    assert devices.reason.startswith(reason)
    assert devices.fix == "run: pip install --force-reinstall onnxruntime"
    [check] = engine_diagnose()
    assert (check.ok, check.detail, check.fix) == (False, devices.reason, devices.fix)
    sys.modules.pop("onnxruntime", None)  # the damaged one


def test_a_sound_onnxruntime_is_named_with_its_version_and_place() -> None:
    import onnxruntime

    [check] = engine_diagnose()
    assert check.ok
    assert check.detail == f"{onnxruntime.__version__} in {Path(onnxruntime.__file__).parent}"
