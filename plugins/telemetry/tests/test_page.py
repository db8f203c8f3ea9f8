"""docs/telemetry.md is true: its Python runs, and its tables are whole."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from ways import rows

import engine
from engine_telemetry import opentelemetry, prometheus, recorder

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/telemetry.md").read_text()
ROWS = re.findall(r"^\| (.+) \|$", PAGE, re.M)


def test_the_page_has_every_option_and_its_default() -> None:
    for module, name in ((opentelemetry, "opentelemetry"), (prometheus, "prometheus"),
                         (recorder, "recorder")):  # fmt: skip
        [row] = [row for row in ROWS if row.startswith(f"[`{name}`]")]
        for option, declared in module.OPTIONS.items():
            assert f"`{option}`" in row
            assert declared.default in row


def test_the_page_has_every_metric_of_prometheus_with_its_labels(
    affine: Path, load: Callable[..., engine.Model]
) -> None:
    with load(affine, "prometheus") as model:
        model.predict([rows(1)])
    shown = dict(re.findall(r"^\| `(inference_engine_\w+)` \| \w+[^|]* \| ([^|]+) \|$", PAGE, re.M))
    text = prometheus.text()
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("inference_engine") and not family.name.endswith("_created"):
            name = family.name + ("_total" if family.type == "counter" else "")
            found[name] = {
                label for sample in family.samples for label in sample.labels if label != "le"
            }
    assert shown.keys() == found.keys()
    for name, labels in found.items():
        if labels:  # there was no update
            assert shown[name] == ", ".join(f"`{label}`" for label in sorted(labels))
    assert REGISTRY.get_sample_value(
        "inference_engine_requests_total", {"model": affine.stem, "status": "completed"}
    )


def test_the_page_has_every_metric_of_opentelemetry(
    affine: Path,
    load: Callable[..., engine.Model],
    points: Callable[[str, str], list[Any]],
    instruments: Callable[[], dict[str, str]],
) -> None:
    with load(affine, "opentelemetry") as model:
        model.predict([rows(1)])
        found = instruments()  # a gauge of devices has those of open models
    shown = dict(
        re.findall(
            r"^\| `(inference_engine\.[\w.]+)` \| [\w-]+(?: counter| gauge)?, (\S+) \|",
            PAGE,
            re.M,
        )
    )
    assert {name: shown[name] for name in found} == found
    assert shown.keys() - found.keys() <= {"inference_engine.update.duration"}


def test_the_python_of_the_page_prints_what_it_says() -> None:
    [source] = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    [said] = re.findall(r"# (\['compute'.*)", source)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{said}\n", "")
