"""Importing the plugin where there is no CANN: quiet, and no device is found."""

from __future__ import annotations

import os
import subprocess
import sys

_REPORT = """
import sys
import engine_ascend_ge as plugin
info = plugin.engine_backend()
vendor = sorted(name for name in sys.modules if name.partition(".")[0] in
                ("acl", "ge", "onnx", "onnxruntime", "torch_npu", "te", "tbe"))
own = sorted(name for name in sys.modules if name.startswith("engine_ascend_ge."))
print(repr((vendor, own, info.name)))
devices = plugin.engine_devices()
print(repr((len(devices.found), devices.reason, devices.fix)))
"""


def run_without_cann(code: str) -> list[str]:
    keep = {key: value for key, value in os.environ.items() if not key.startswith("ASCEND")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**keep, "PYTHONPATH": "", "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_import_touches_no_vendor_library() -> None:
    [first, _] = run_without_cann(_REPORT)
    vendor, own, name = eval(first)
    assert name == "ascend_ge"
    assert vendor == []
    late = {f"engine_ascend_ge.{name}" for name in ("devices", "model", "run", "communicator")}
    assert not late & {*own}, "hooks import these when they are called"


def test_no_device_is_found_without_cann_and_the_reason_says_what_to_do() -> None:
    [_, second] = run_without_cann(_REPORT)
    count, reason, fix = eval(second)
    assert count == 0
    assert "no module 'acl'" in reason
    assert "install" in fix
