"""For all tests, of the core and of the plugins."""

import faulthandler
import gc
import os
import time
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How fast a machine makes examples says nothing of what is tested, and others may be busy on it.
# The same examples each time: what fails is then a change's fault.
settings.register_profile(
    "engine",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("engine")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect no garbage while thousands of tests are made, all of which stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _young_heap() -> None:
    """Leave what earlier modules have left in memory out of this one's garbage collections.

    It is a million objects after some thousand tests; a collection then takes a second, and tests
    that make many objects or look for leaks spend most of their time in such.
    """
    gc.collect()
    gc.freeze()


_stderr = -1


def pytest_configure() -> None:
    """Keep the real stderr: as tests run, 2 is a file of pytest's."""
    global _stderr
    _stderr = os.dup(2)


_armed = (0.0, 0.0)
"""The time-out of the watchdog that was started last, and when."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End the whole run, with every thread's stack, where a test outlives its time-out by far.

    pytest-timeout raises by SIGALRM, which tests of interrupts take over, and which nothing that
    is stuck outside of Python sees. The watchdog is a thread, which is not started for every test.
    """
    global _armed
    marker = item.get_closest_marker("timeout")
    configured = item.config.getoption("timeout", None) or item.config.getini("timeout")
    limit_s, now_s = float(marker.args[0] if marker else configured), time.monotonic()
    if limit_s != _armed[0] or now_s > _armed[1] + 60:
        faulthandler.dump_traceback_later(limit_s + 120, exit=True, file=_stderr)
        _armed = limit_s, now_s


def pytest_unconfigure() -> None:
    """Let the end of the run take as long as it takes."""
    faulthandler.cancel_dump_traceback_later()
