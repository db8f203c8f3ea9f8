"""A real browser for tests of pages: chromium, driven by selenium; a test skips without it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def chromium(**logs: str) -> Iterator[Any]:
    """Start chromium without a window; yields its driver.

    logs: kinds of messages that `driver.get_log` gives beside the console's, as performance="ALL".
    """
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    service = shutil.which("chromedriver")
    if not program or not service:
        pytest.skip("needs chromium and chromedriver; Debian: apt install chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for word in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # it does not start as root with one
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", **logs})
    driver = webdriver.Chrome(options, webdriver.ChromeService(service))
    try:
        yield driver
    finally:
        driver.quit()


def set_window(driver: Any, width: int, height: int, scheme: str = "light") -> None:
    """Set the size of the window, and the scheme of colours that its user prefers."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def console(driver: Any) -> list[Any]:
    """Return what the page has written to the console of warnings and errors."""
    log = driver.get_log("browser")
    return [line for line in log if line["level"] not in ("INFO", "DEBUG")]
