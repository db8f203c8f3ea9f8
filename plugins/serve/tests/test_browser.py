"""The page in a real browser: chromium, driven by selenium; without one these tests are skipped."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from serve_ways import Served, identity, infer, scaled, served

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from engine_testing.browser import chromium, console, set_window

DIGITS = Path(__file__).parents[3] / "examples/digits"
HACK = "<img src=x onerror=document.title='hacked'>"
WAIT_S = 60  # on a busy machine
SIZES = [(400, 900), (700, 900), (1000, 900), (1600, 900)]


class Browser:
    """A window with the page. Finds elements, and waits for what the page says."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, served: Served, model: str = "") -> None:
        self.driver.get(f"http://{served.http}/")
        if model:
            self.wait(lambda: model in self.texts("#models button"))
            [button] = [one for one in self.all("#models button") if one.text == model]
            button.click()
            self.wait(lambda: self.one("#model-title").text == model)

    def wait(self, condition: Callable[[], Any]) -> Any:
        waiting = WebDriverWait(
            self.driver,
            WAIT_S,
            0.05,
            [StaleElementReferenceException],  # the page has drawn anew
        )
        return waiting.until(lambda _: condition())

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements(By.CSS_SELECTOR, selector))

    def one(self, selector: str) -> Any:
        [found] = self.all(selector)
        return found

    def texts(self, selector: str) -> list[str]:
        every = "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText)"
        return list(self.js(every, selector))

    def field(self, label: str) -> Any:
        """Return the field with a label."""
        [found] = [each for each in self.all("label") if each.text.startswith(label)]
        return found.find_element(By.CSS_SELECTOR, "input, select")

    def write(self, label: str, text: str) -> None:
        field = self.field(label)
        field.clear()
        field.send_keys(text)

    def run(self) -> str:
        """Run the model; return the error, "" for none."""
        self.js("document.querySelectorAll('#answer .output').forEach((each) => each.remove())")
        self.one(".primary").click()
        self.wait(lambda: self.all("#answer .output") or self.one("#run > .error").text)
        return str(self.one("#run > .error").text)

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def module(self, name: str, script: str, *arguments: Any) -> Any:
        """Return the value of a script in which `module` is a module of the page."""
        return self.driver.execute_async_script(
            f"const [given, done] = arguments; import('/page/{name}').then((module) => "
            f"done(({script})(module, ...given)))",
            arguments,
        )

    def look(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the size of the window, and the preferred scheme of colours."""
        set_window(self.driver, width, height, scheme)


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def browser(driver: Any, serve: Callable[..., Served]) -> Iterator[Browser]:
    """A window whose console stays empty, and which loads from the server alone.

    serve: ends after the page, which would miss its server.
    """
    browser = Browser(driver)
    browser.look(1600, 1000)
    yield browser
    origin = browser.js("return location.origin + '/'")
    loaded = browser.js("return performance.getEntriesByType('resource').map((each) => each.name)")
    written = console(driver)
    driver.get("about:blank")
    assert written == []
    assert [name for name in loaded if not name.startswith(origin)] == []


@pytest.fixture(scope="module")
def digits() -> Iterator[Served]:
    with served(DIGITS / "digits.onnx") as found:
        yield found


def png(pixels: np.ndarray) -> bytes:
    """Return a picture of grey or coloured pixels as a PNG file."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    height, width = pixels.shape[:2]
    kind = {2: 0, 3: 2}[pixels.ndim]
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(np.uint8))
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def held_back(index: int) -> tuple[bytes, int]:
    """Return a held-back digit as a picture, and its label."""
    with np.load(DIGITS / "test_images.npz") as file:
        image, label = file["image"][index, 0], file["label"][index]
    return png(np.rint(image * 255 / 16)), int(label)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_form_runs_the_digits_example_on_a_file(
    browser: Browser, digits: Served, tmp_path: Path, index: int
) -> None:
    picture, label = held_back(index)
    (tmp_path / "digit.png").write_bytes(picture)
    browser.open(digits, "digits")
    browser.one("input[type=file]").send_keys(str(tmp_path / "digit.png"))
    browser.write("white is", "16")
    assert browser.run() == ""
    assert browser.one("#answer .value").text == str(label)
    assert browser.texts(".bars th")[0] == f"class {label}"
    assert float(browser.texts(".bars .number")[0]) > 0.5
    assert " ms in this browser; " in browser.one("#answer .took").text


def test_a_picture_is_dropped(browser: Browser, digits: Served) -> None:
    picture, label = held_back(4)
    browser.open(digits, "digits")
    browser.js(
        """
        const bytes = Uint8Array.from(atob(arguments[0]), (letter) => letter.charCodeAt(0));
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File([bytes], "digit.png", { type: "image/png" }));
        const event = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
        document.querySelector(".drop").dispatchEvent(event);
        """,
        base64.b64encode(picture).decode(),
    )
    browser.wait(lambda: "digit.png" in browser.one(".drop").text)
    browser.write("white is", "16")
    assert browser.run() == ""
    assert browser.one("#answer .value").text == str(label)


def image_model(path: Path, shape: list[Any]) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    onnx.save(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path
    )
    return path


@pytest.mark.parametrize("order", ["RGB", "BGR"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_picture_becomes_the_tensor_that_numpy_makes_of_it(
    browser: Browser, serve: Callable[..., Served], tmp_path: Path, layout: str, order: str
) -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (6, 7, 3))
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = (pixels[..., :: -1 if order == "BGR" else 1] / 255 - mean) / std
    expected = expected.transpose(2, 0, 1) if layout == "NCHW" else expected
    (tmp_path / "picture.png").write_bytes(png(pixels))
    model = image_model(tmp_path / "net.onnx", ["n", *expected.shape])
    browser.open(serve(model), "net")
    browser.one("input[type=file]").send_keys(str(tmp_path / "picture.png"))
    [button] = [each for each in browser.all(".presets button") if each.text == "ImageNet"]
    button.click()
    Select(browser.field("channels")).select_by_value(order)
    assert Select(browser.field("layout")).first_selected_option.text == layout
    assert browser.run() == ""
    found = [float(text) for text in browser.texts("table.values td")]
    np.testing.assert_allclose(found, expected.ravel(), rtol=1e-4, atol=1e-6)


def test_a_picture_is_resized_to_the_inputs_size(
    browser: Browser, serve: Callable[..., Served], tmp_path: Path
) -> None:
    halves = np.zeros((40, 80), int)
    halves[:, 40:] = 255
    (tmp_path / "halves.png").write_bytes(png(halves))
    browser.open(serve(image_model(tmp_path / "net.onnx", [1, 1, 8, 8])), "net")
    browser.one("input[type=file]").send_keys(str(tmp_path / "halves.png"))
    expected = {"stretch": [[0] * 4 + [1] * 4] * 8, "crop": [[0] * 4 + [1] * 4] * 8}
    expected["pad"] = [[1] * 8] * 2 + [[0] * 4 + [1] * 4] * 4 + [[1] * 8] * 2
    for fit, values in expected.items():
        Select(browser.field("size")).select_by_value(fit)
        assert browser.run() == ""
        found = np.reshape([float(text) for text in browser.texts("table.values td")], (8, 8))
        inner = [0, 1, 2, 5, 6, 7]  # the browser may blend the columns at the edge
        np.testing.assert_allclose(found[:, inner], np.array(values)[:, inner], atol=0.02)


@pytest.mark.parametrize(
    ("dtype", "text", "shown"),
    [
        (TensorProto.FLOAT, "1.5 -2 nan", ["1.5", "-2", "NaN"]),
        (TensorProto.DOUBLE, "[0.1, 1e300]", ["0.1", "1e+300"]),
        (TensorProto.FLOAT16, "0.5, 65504, 70000", ["0.5", "65504", "Infinity"]),
        (TensorProto.INT64, "[9007199254740993, -1]", ["9007199254740993", "-1"]),
        (TensorProto.UINT8, "0 255", ["0", "255"]),
        (TensorProto.BOOL, "true 0 1", ["true", "false", "true"]),
        (TensorProto.STRING, '["one", "für", ""]', ["one", "für", ""]),
    ],
)
def test_values_of_a_type_go_there_and_back(
    browser: Browser, serve: Callable[..., Served], tmp_path: Path, dtype: int, text: str,
    shown: list[str],
) -> None:  # fmt: skip
    browser.open(serve(identity(tmp_path / "net.onnx", dtype)), "net")
    browser.write("shape", str(len(shown)))
    browser.one("textarea").send_keys(text)
    assert browser.run() == ""
    assert browser.texts("table.values td") == shown


def test_every_half_and_brain_float_is_what_numpy_says(browser: Browser, digits: Served) -> None:
    browser.open(digits)
    numbers = np.random.default_rng(7).normal(size=3000) * 10.0 ** np.arange(-12, 13).repeat(120)
    numbers = np.float32(
        [*numbers, 0, 65519, 65520, 2**-25, 3 * 2**-26, 1 + 2**-11, 1 + 3 * 2**-11]
    )
    encode = "(module, type, values) => [...new Uint16Array(module.encode(type, values).buffer)]"
    decode = (
        "(module, type) => Array.from(module.decode(type, new Uint8Array("
        "Uint16Array.from({ length: 65536 }, (_, bits) => bits).buffer)), String)"
    )
    with np.errstate(over="ignore", invalid="ignore"):
        for name, dtype in (("FP16", np.float16), ("BF16", ml_dtypes.bfloat16)):
            expected = numbers.astype(dtype).view(np.uint16).tolist()
            assert browser.module("datatypes.js", encode, name, numbers.tolist()) == expected
            values = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float64)
            found = np.array([*map(float, browser.module("datatypes.js", decode, name))])
            np.testing.assert_array_equal(found, values)


def test_wrong_values_are_named_with_their_input(
    browser: Browser, serve: Callable[..., Served], tmp_path: Path
) -> None:
    browser.open(serve(identity(tmp_path / "net.onnx", TensorProto.INT32)), "net")
    for shape, text, error in (
        ("3", "1 2", "shape 3 takes 3 values, got 2"),
        ("3, 3", "1 2", 'expected a shape as ?, got "3, 3"'),
        ("2", "1 one", '"one" is not a number'),
        ("2", "1 2.5", "expected whole numbers for INT32, got 2.5"),
        ("2", "1 3000000000", "INT32 is from -2147483648 to 2147483647, got 3000000000"),
        ("2", "[[1, 2], [3]]", "the lists are not of one length: expected 2 values, got 1 values"),
        ("2", '["a", "b"]', 'expected numbers, got "a"'),
        ("2", "[1, 2", "this is not JSON"),
        ("2", "", "there are no values"),
    ):
        browser.write("shape", shape)
        browser.one("textarea").clear()
        browser.one("textarea").send_keys(text)
        assert browser.run().startswith(f'input "x": {error}')


def test_names_of_models_and_tensors_run_no_script(
    browser: Browser, serve: Callable[..., Served], tmp_path: Path
) -> None:
    model = onnx.load(scaled(tmp_path / "net.onnx", 2.0))
    text = "<script>document.title='hacked'</script>"
    for old, new in (("x", HACK), ("y", text)):
        for value in (*model.graph.input, *model.graph.output):
            value.name = new if value.name == old else value.name
        for node in model.graph.node:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]
    onnx.save(model, tmp_path / "net.onnx")
    browser.open(serve(f"{HACK}={tmp_path / 'net.onnx'}"), HACK)
    browser.one("textarea").send_keys("[[1, 2, 3]]")
    assert browser.run() == ""
    assert browser.texts("table.values td") == ["2", "4", "6"]
    assert browser.one("legend b").text == HACK
    assert browser.one("#answer .output b").text == text
    assert browser.driver.title == "engine serve"
    assert browser.all("main img, main script") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_narrow_and_wide_windows_in_both_schemes(
    browser: Browser, serve: Callable[..., Served], tmp_path: Path, scheme: str
) -> None:
    long = "a_long_name_without_any_place_to_break_it_" * 3
    net = scaled(tmp_path / "net.onnx", 2.0)
    browser.open(serve(DIGITS / "digits.onnx", f"{long}={net}"), "digits")
    Select(browser.field("from")).select_by_value("random")
    assert browser.run() == ""
    for width, height in SIZES:
        browser.look(width, height, scheme)
        root = "document.scrollingElement"
        assert browser.js(f"return {root}.scrollWidth <= {root}.clientWidth"), width
    for selector in ("body", "#models th", "#facts dt", "#answer .took", ".primary", "td.state"):
        colours = browser.js(
            "let at = document.querySelector(arguments[0]); "
            "const text = getComputedStyle(at).color;"
            "const back = () => getComputedStyle(at).backgroundColor;"
            "while (back() === 'rgba(0, 0, 0, 0)') at = at.parentNode;"
            "return [text, back()]",
            selector,
        )
        text, back = map(luminance, colours)
        assert (max(text, back) + 0.05) / (min(text, back) + 0.05) >= 4.5, selector  # WCAG's AA
        if selector == "body":
            assert (text > back) == (scheme == "dark")


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG of a colour as "rgb(1, 2, 3)"."""
    parts = np.array([float(part) for part in colour[4:-1].split(",")]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_every_field_and_button_has_a_name_and_is_reached_by_keyboard(
    browser: Browser, digits: Served
) -> None:
    browser.open(digits, "digits")
    controls = browser.all("button, input, select, textarea, a")
    visible = [each for each in controls if each.is_displayed()]
    assert all(each.accessible_name for each in visible)
    reached = set()
    browser.js("document.activeElement.blur()")
    for _ in range(len(visible) + 3):  # behind the last comes the browser itself
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        reached.add(browser.driver.switch_to.active_element.id)
    assert {each.id for each in visible} <= reached
    browser.field("from").send_keys("r")  # random
    browser.field("times").send_keys(Keys.ENTER)
    browser.wait(lambda: browser.all("#answer .output"))


def test_the_token_is_asked_for_and_kept_in_memory_alone(
    browser: Browser, serve: Callable[..., Served]
) -> None:
    served = serve(DIGITS / "digits.onnx", token="secret")
    browser.open(served)
    browser.wait(lambda: browser.one("#token").is_displayed())
    assert browser.texts("#models button") == []
    browser.one("#token-value").send_keys("secret", Keys.ENTER)
    browser.wait(lambda: browser.texts("#models button") == ["digits"])
    Select(browser.field("from")).select_by_value("zeros")
    assert browser.run() == ""
    kept = "return JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"
    assert "secret" not in browser.js(kept)
    browser.driver.refresh()
    browser.wait(lambda: browser.one("#token").is_displayed())


def test_requests_of_others_move_the_plots(browser: Browser, serve: Callable[..., Served]) -> None:
    served = serve(DIGITS / "digits.onnx")
    browser.open(served, "digits")
    zeros = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64}

    def is_moved() -> bool:
        assert infer(served.http, "digits", zeros)[0] == 200
        labels = [each.get_attribute("aria-label") for each in browser.all("#plots svg")]
        [latency, rate, queue] = labels
        return (
            latency.startswith("Latency: p50 ") and "ms" in latency
            and not rate.startswith("Requests a second: now 0 ") and "unknown" not in rate
            and queue == "Queue: waiting 0, running 0 now"
        )  # fmt: skip

    browser.wait(is_moved)
    browser.wait(lambda: "L" in browser.all("#plots path.line0")[1].get_attribute("d"))


def test_the_plots_show_what_came_between_two_readings(browser: Browser, digits: Served) -> None:
    browser.open(digits)
    before = [[1.0, 50], [2.0, 50]]
    after = [[1.0, 50], [2.0, 147], [64.0, 3]]  # 97 requests of 2 ms, 3 of 64 in two seconds
    script = """(module, before, after) => {
        const history = new module.History();
        const model = { name: "net", version: "1", waiting: 4, running: 2 };
        history.add([{ ...model, latency_ms: before }], 1000);
        history.add([{ ...model, latency_ms: after }], 3000);
        history.add([{ ...model, latency_ms: [[1.0, 1]] }], 4000); // loaded anew
        history.add([{ ...model, latency_ms: [[1.0, 1]] }], 5000);
        return history.of(module.keyOf(model));
    }"""
    first, second = browser.module("history.js", script, before, after)
    assert first == {
        "moment": 3000, "rate": 50, "p50": 2, "p99": 64, "waiting": 4, "running": 2,
    }  # fmt: skip
    assert (second["rate"], second["p50"], second["p99"]) == (0, None, None)


def test_what_was_typed_stays_while_the_page_looks_at_the_server(
    browser: Browser, digits: Served
) -> None:
    browser.open(digits, "digits")
    Select(browser.field("from")).select_by_value("text")
    browser.one("textarea").send_keys("1 2 3")
    field = browser.one("textarea").id
    before = browser.js("return performance.getEntriesByType('resource').length")
    count = "return performance.getEntriesByType('resource').length"
    browser.wait(lambda: browser.js(count) >= before + 2)
    assert browser.one("textarea").get_property("value") == "1 2 3"
    assert browser.driver.switch_to.active_element.id == field


def test_a_model_that_is_unloaded_can_no_longer_be_chosen(
    browser: Browser, serve: Callable[..., Served], tmp_path: Path
) -> None:
    served = serve(DIGITS / "digits.onnx", scaled(tmp_path / "net.onnx", 2.0))
    browser.open(served, "net")
    served.repository.unload("net")
    browser.wait(lambda: browser.one("#model-title").text == "digits")
    assert "unavailable: unloaded" in browser.texts("td.state")
    [button] = [each for each in browser.all("#models button") if each.text == "net"]
    assert not button.is_enabled()


def test_large_outputs_are_shown_by_their_first_values(
    browser: Browser, serve: Callable[..., Served], tmp_path: Path
) -> None:
    browser.open(serve(identity(tmp_path / "net.onnx", TensorProto.INT32)), "net")
    browser.write("shape", "5000")
    text = json.dumps([7] * 4999 + [-3])
    browser.js("arguments[0].value = arguments[1]", browser.one("textarea"), text)
    assert browser.run() == ""
    assert browser.one("#answer .first").text == "7, " * 24 + "…"
    [text] = browser.texts("#answer .output > small")
    assert text == f"5000 values: least -3, mean {(7 * 4999 - 3) / 5000}, most 7"
