"""How fast the page of engine explain draws, in a real browser.

    python bench/explained_page.py [--nodes 10000] [--model FILE]

Needs chromium, chromedriver and selenium. Of a generated model of so many nodes, or of a file:
milliseconds from the script's start to the end of the first drawing, and while the drawing is
dragged, near and as a whole, the median and the longest time of a frame, and of one drawing.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from onnx import TensorProto, helper
from selenium import webdriver

import engine
from engine.report.explanation.roof import Roof

DRAG = """
const [done] = arguments, canvas = document.querySelector('#canvas');
const { width, height } = canvas.getBoundingClientRect(), frames = [];
const send = (kind, step) => canvas.dispatchEvent(new PointerEvent(kind, {
  pointerId: 1, clientX: width / 2, clientY: height / 2 - 3 * step, bubbles: true }));
canvas.setPointerCapture = () => {};
let before = performance.now(), step = 0;
send('pointerdown', 0);
const next = (now) => {
  frames.push(now - before); before = now; step += 1;
  if (step < 90) { send('pointermove', step); requestAnimationFrame(next); }
  else { send('pointerup', step); done(frames.slice(2)); }
};
requestAnimationFrame(next);
"""


def main() -> None:
    """Draw, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--model", type=Path)
    asked = parser.parse_args()
    model = asked.model or generated(asked.nodes)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        found = engine.explain(model, roof=Roof(1e11, 1e10))
        found.save_html(page)
        print(f"{len(found.nodes):,} nodes, {page.stat().st_size / 1e6:.1f} MB")
        driver = browser()
        try:
            driver.get(page.as_uri())
            script = "return performance.getEntriesByName('first drawing').map((m) => m.duration)"
            firsts = []
            for _ in range(5):
                driver.refresh()
                while not (took := driver.execute_script(script)):
                    pass
                firsts += took
            print(f"first drawing: {median(firsts):.0f} ms, at most {max(firsts):.0f}")
            for name in ("near", "whole"):
                if name == "whole":
                    driver.execute_script("document.querySelector('#fit').click()")
                frames = driver.execute_async_script(DRAG)
                print(f"frames, {name}: {median(frames):.1f} ms, at most {max(frames):.0f}")
        finally:
            driver.quit()


def browser() -> Any:
    """Start chromium in a window of 1600 x 1000."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for word in ("--headless=new", "--disable-gpu", "--no-sandbox", "--window-size=1600,1000"):
        options.add_argument(word)
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


def generated(count: int) -> bytes:
    """Return a model in which each node reads the one before it and one of the last twenty."""
    chance = random.Random(7)
    nodes, made = [], ["x"]
    for number in range(count):
        kind, other = chance.choice(("Add", "Mul", "Sub", "Max")), chance.choice(made[-20:])
        made.append(f"t{number}")
        nodes.append(helper.make_node(kind, [made[-2], other], [made[-1]], f"n{number}"))
    x, y = (helper.make_tensor_value_info(end, TensorProto.FLOAT, [1]) for end in ("x", made[-1]))
    graph = helper.make_graph(nodes, "generated", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString())


if __name__ == "__main__":
    main()
