"""The built site as files in a real browser, without a network: chromium, driven by selenium."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from engine_testing.browser import chromium, set_window

SITE = Path(os.environ.get("ENGINE_SITE", "missing"))
pytestmark = pytest.mark.skipif(not SITE.is_dir(), reason="tox -e docs builds the site")
WAIT_S = 60
LOOKED_AT = ("index", "architecture", "tutorials/one_device", "cli", "reference/commands")


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with chromium(performance="ALL") as driver:
        driver.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        yield driver


def look(driver: Any, name: str, width: int, scheme: str) -> None:
    set_window(driver, width, 900, scheme)
    driver.get((SITE / f"{name}.html").resolve().as_uri())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_a_page_fits_its_window_and_follows_the_scheme(
    driver: Any, width: int, scheme: str
) -> None:
    for name in LOOKED_AT:
        look(driver, name, width, scheme)
        wide = driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, name
        color = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        red = int(color.removeprefix("rgb(").removeprefix("rgba(").split(",")[0])
        assert (red > 128) == (scheme == "light"), (name, color)
        loaded = driver.execute_script(
            "return [...document.images].filter((one) => !one.complete || !one.naturalWidth).length"
        )
        assert loaded == 0, name


def test_no_page_writes_to_the_console(driver: Any) -> None:
    driver.get_log("browser")
    for name in LOOKED_AT:
        look(driver, name, 1600, "light")
    assert driver.get_log("browser") == []


def test_the_search_works_without_a_network(driver: Any) -> None:
    look(driver, "index", 1600, "light")
    wait = WebDriverWait(driver, WAIT_S, 0.1)
    driver.find_element(By.TAG_NAME, "body").send_keys(Keys.CONTROL, "k")
    links = (
        "const all = (root) => [...root.querySelectorAll('*')].flatMap((one) => [one, "
        "...(one.shadowRoot ? all(one.shadowRoot) : [])]); return all(document)"
        ".filter((one) => one.matches('a') && /[?]h=/.test(one.href)).map((one) => one.href)"
    )
    ActionChains(driver).pause(0.5).send_keys("update_weights").perform()
    found = wait.until(lambda _: driver.execute_script(links))
    assert any("update_weights.html" in address for address in found), found
    assert all(address.startswith("file:") for address in found)
