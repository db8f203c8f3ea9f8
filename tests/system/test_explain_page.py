"""The page of engine.explain in a real browser; without chromium and selenium it is skipped."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper, parser

import engine
from engine.report.explanation.roof import Roof

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from engine_testing.browser import chromium, console, set_window

DIGITS = Path(__file__).parents[2] / "examples/digits/digits.onnx"
NETS = Path(__file__).parents[1] / "data/mindir"
ROOF = Roof(1e11, 1e10)
HACK = "<img src=x onerror=document.title='hacked'>"
SIZES = [(400, 800), (760, 800), (1000, 800), (1600, 1000)]


class Page:
    """A window with a page. Finds elements, and asks for the colours of the drawing."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def look(self, width: int, height: int, scheme: str = "light") -> None:
        set_window(self.driver, width, height, scheme)

    def open(self, path: Path) -> None:
        self.driver.get(path.as_uri())
        WebDriverWait(self.driver, 60, 0.05).until(lambda _: self.measures())

    def measures(self) -> list[str]:
        script = "return performance.getEntriesByType('measure').map((each) => each.name)"
        return list(self.driver.execute_script(script))

    def one(self, selector: str) -> Any:
        [found] = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return found

    def text(self, selector: str) -> str:
        return str(self.one(selector).text)

    def js(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def colours(self) -> int:
        """Return how many colours the drawing has."""
        self.settle()
        return int(
            self.js(
                """const canvas = document.querySelector('#canvas');
                const copy = new OffscreenCanvas(canvas.width, canvas.height);
                const pen = copy.getContext('2d', { willReadFrequently: true });
                pen.drawImage(canvas, 0, 0);
                const { data } = pen.getImageData(0, 0, copy.width, copy.height);
                return new Set(new Uint32Array(data.buffer)).size;"""
            )
        )

    def settle(self) -> None:
        """Wait for the next drawing."""
        self.driver.execute_async_script(
            "const [done] = arguments; requestAnimationFrame(() => requestAnimationFrame(done))"
        )


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def page(driver: Any) -> Iterator[Page]:
    """A window whose console stays empty, and which loads nothing beside the file."""
    page = Page(driver)
    page.look(1600, 1000)
    yield page
    loaded = page.js("return performance.getEntriesByType('resource').map((each) => each.name)")
    written = console(driver)
    driver.get("about:blank")
    assert written == []
    assert [name for name in loaded if not name.startswith("data:")] == []


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(model: Any, **more: Any) -> Path:
        engine.explain(model, roof=ROOF, **more).save_html(tmp_path / "model.html")
        return tmp_path / "model.html"

    return written


def large(count: int, name: str = "") -> bytes:
    """A model of so many nodes: each adds the one before it and one of the last twenty."""
    chance = random.Random(7)
    nodes, made = [], ["x"]
    for number in range(count):
        other = chance.choice(made[-20:])
        kind = chance.choice(("Add", "Mul", "Sub", "Max"))
        made.append(f"t{number}")
        nodes.append(helper.make_node(kind, [made[-2], other], [made[-1]], f"{name}n{number}"))
    x, y = (helper.make_tensor_value_info(end, TensorProto.FLOAT, [1]) for end in ("x", made[-1]))
    graph = helper.make_graph(nodes, "large", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("model", [DIGITS, NETS / "lenet_bn.mindir"], ids=lambda path: path.stem)
def test_a_model_is_drawn_with_its_numbers(
    page: Page, write: Write, model: Path, scheme: str
) -> None:
    page.look(1600, 1000, scheme)
    page.open(write(model))
    assert model.name in page.text("h1")
    assert page.colours() > 20
    assert "operations" in page.text("#summary")
    back = page.js("return getComputedStyle(document.body).backgroundColor")
    assert back == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}[scheme]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}")
def test_no_width_scrolls_sideways_and_all_controls_are_there(
    page: Page, write: Write, size: tuple[int, int]
) -> None:
    page.look(*size)
    page.open(write(DIGITS))
    assert page.js("return document.documentElement.scrollWidth") <= size[0]
    aside = "document.querySelector('aside')"
    assert page.js(f"return {aside}.scrollWidth <= {aside}.clientWidth")
    for selector in ("#colour", "#search", "#fit", "#canvas", "#legend"):
        box = page.one(selector).rect
        assert box["width"] > 0
        assert box["x"] + box["width"] <= size[0]
    assert page.one("#canvas").rect["height"] > 200


def test_a_node_is_found_by_its_name_and_shown_with_its_neighbours(
    page: Page, write: Write
) -> None:
    page.open(write(DIGITS))
    page.one("#search").send_keys("rectify", Keys.ENTER)
    details = page.text("#details")
    assert "1 found" in page.text("#results")
    for words in ("Relu", "rectify", "its kernel holds", "Gemm hidden", "Gemm classes"):
        assert words in details
    [into] = [one for one in page.driver.find_elements(By.CSS_SELECTOR, "#details .link")
              if one.text == "Gemm classes"]  # fmt: skip
    into.click()
    assert "classes" in page.text("#details dl")
    page.one("#canvas").send_keys(Keys.ESCAPE)
    assert not page.one("#details").is_displayed()


def test_a_click_on_a_box_shows_it_and_a_drag_moves_the_drawing(page: Page, write: Write) -> None:
    page.open(write(DIGITS))
    page.one("#search").send_keys("rectify", Keys.ENTER)  # stands in the middle then
    page.one("#canvas").send_keys(Keys.ESCAPE)
    canvas = page.one("#canvas")
    ActionChains(page.driver).move_to_element(canvas).click().perform()
    assert "rectify" in page.text("#details")
    ActionChains(page.driver).drag_and_drop_by_offset(canvas, 300, 250).perform()
    ActionChains(page.driver).move_to_element(canvas).click().perform()
    assert not page.one("#details").is_displayed() or "rectify" not in page.text("#details")


def test_the_nodes_inside_of_a_loop_are_listed_and_found(page: Page, write: Write) -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17]>
        net (float[4] x) => (float[4] y) <int64 n = {10}, bool b = {1}>
        { y = Loop <body = body (int64 i, bool go, float[4] s) => (bool on, float[4] t)
          { on = Identity(go) [rise] t = Add(s, x) }> (n, b, x) }"""
    )
    page.open(write(model.SerializeToString()))
    page.one("#search").send_keys("rise", Keys.ENTER)
    assert "1 found" in page.text("#results")
    rows = page.text("#details table").splitlines()
    assert rows == [
        "inside runs operations",
        "0.body.0 Identity 10 times 0 FLOP",
        "0.body.1 Add rise 10 times 4 FLOP",
    ]
    aside = "document.querySelector('aside')"
    assert page.js(f"return {aside}.scrollWidth <= {aside}.clientWidth")


def test_colours_have_a_legend_each(page: Page, write: Write) -> None:
    page.open(write(DIGITS, profile=True))
    select = Select(page.one("#colour"))
    words = {
        "operator": "sums of products (2)",
        "time": "0 to",
        "roof": "0 to",
        "place": "cpu cpu:0",
        "state": "fused into another (1)",
    }
    assert [option.get_attribute("value") for option in select.options] == list(words)
    for value, text in words.items():
        select.select_by_value(value)
        assert text in page.text("#legend")


def test_a_hostile_name_is_shown_and_never_run(page: Page, write: Write) -> None:
    page.open(write(large(3, HACK)))
    page.one("#search").send_keys("n1", Keys.ENTER)
    assert HACK in page.text("#details")
    page.settle()
    assert page.js("return document.title") != "hacked"
    assert page.js("return document.images.length") == 0


@pytest.mark.slow
def test_ten_thousand_nodes_are_drawn_whole_and_from_near(page: Page, write: Write) -> None:
    page.open(write(large(10_000), target="reference"))
    assert page.one("#overview").is_displayed()
    near = page.colours()
    page.one("#fit").click()
    assert page.colours() > 5
    assert near > 20
    page.one("#search").send_keys("n9876", Keys.ENTER)
    assert "n9876" in page.text("#details")
    overview = page.one("#overview")
    ActionChains(page.driver).move_to_element(overview).click().perform()
    assert page.colours() > 20
