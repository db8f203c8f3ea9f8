"""The tests of this plugin run on an emulated GPU, unless they are marked `device`.

The emulator's modules (`tensorrt`, `pycuda`, `emulated_gpu`) are put in front of whatever is
installed, for this process and for those it starts. Tests on real hardware run in processes
without them.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EMULATED = Path(__file__).parent / "emulated" / "site"


@pytest.fixture(scope="session", autouse=True)
def _emulated_modules() -> Iterator[None]:
    """Put the emulated modules on the path before anything imports the real ones."""
    assert "tensorrt" not in sys.modules, "something imported the real TensorRT first"
    sys.path.insert(0, str(EMULATED))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(EMULATED), before]))
    yield
    sys.path.remove(str(EMULATED))
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves something on the emulated device, or did what pycuda forbids."""
    from emulated_gpu import live, violations

    gc.collect()
    violations()
    before = live()
    yield
    gc.collect()
    assert violations() == []
    after = live()
    for kind in ("primary contexts",):  # retained once a device, for the life of the process
        before.pop(kind, None), after.pop(kind, None)
    assert after == before, "left on the emulated device"
