"""On real terminals and into real pipes: widths, styles, readers that leave, full disks."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from own_python import python

from engine_testing import models

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WIDTHS = [40, *(pytest.param(width, marks=pytest.mark.slow) for width in (64, 72, 80, 200))]


def shown(text: str) -> list[str]:
    """The lines on a terminal without their styles."""
    return ESCAPE.sub("", text).splitlines()


@pytest.mark.parametrize("columns", WIDTHS)
def test_tables_fit_and_break_no_name_and_no_heading(terminal, digits, columns):
    arguments = ("inspect", "digits.onnx", "--nodes", "--parameters", "--target", "cpu")
    done = terminal(*arguments, columns=columns, cwd=digits)
    assert done.status == 0
    lines = shown(done.out)
    assert max(map(len, lines)) <= columns
    words = " ".join(lines).split()
    for whole in ("probabilities", "operator", "provider", "Gemm", "float32", "parameters"):
        assert whole in words
    if columns >= 64:
        assert "onnxruntime:CPUExecutionProvider" in words
    why = "".join(words)  # nothing is cut off, wherever lines are broken
    assert columns < 64 or "every" in words
    assert "node" in why
    assert not re.search("…|Traceback", done.out)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 64, 200])
def test_the_list_of_backends_breaks_no_name(terminal, columns):
    done = terminal("plugins", columns=columns)
    assert done.status == 0
    words = " ".join(shown(done.out)).split()
    for whole in ("backend", "state", "package", "about", "cpu", "ready"):
        assert whole in words


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_measurement_shows_a_bar_that_goes_away(terminal, digits, columns):
    done = terminal(
        "bench", digits / "digits.onnx", "--warmup", "0.3", "--duration", "1", "--plot",
        columns=columns,
    )  # fmt: skip
    assert done.status == 0
    for bar in re.findall(r"(?:warming up|measuring)[^\n\r]*", ESCAPE.sub("", done.out)):
        assert len(bar) < columns
    # Cleared, line by line, before the results are printed.
    bars, _, results = done.out.rpartition("\x1b[2K")
    assert "warming up" in bars
    assert "measuring" in bars
    assert not re.search("warming up|measuring", results)
    assert "latency p99" in " ".join(shown(results))
    assert "\x1b[?25l" not in done.out  # the cursor is never hidden, so it cannot stay so
    histogram = [line for line in shown(results) if re.search("[█▏]", line)]
    assert histogram
    assert max(map(len, histogram)) <= columns


def test_what_went_wrong_is_one_line_on_a_terminal_too(terminal, tmp_path):
    done = terminal("run", models.truncated(tmp_path), columns=40)
    assert done.status == 1
    assert done.out.startswith("error: ")
    assert done.out.count("\n") == 1


def test_a_terminal_gets_styles_and_no_colour_where_none_is_wanted(terminal):
    doctor = ("doctor", "cpu")
    colours = [f"\x1b[{code}m" for code in (*range(30, 38), *range(90, 98))]
    coloured = terminal(*doctor).out
    assert "\x1b[1m" in coloured
    assert any(colour in coloured for colour in colours)
    plain = terminal(*doctor, NO_COLOR="1").out
    assert not any(colour in plain for colour in colours)
    assert shown(plain)[-1] == shown(coloured)[-1]
    assert not re.search(r"\x1b\[[0-9;]*m", plain)  # bold neither


# -------------------------------------------------------------------------------------- in pipes


def commands(digits) -> list[list[object]]:
    path = digits / "digits.onnx"
    return [
        ["--help"],
        ["inspect", path],
        ["run", path],
        ["run", path, "--json"],
        ["bench", path, "--runs", 3, "--warmup", 0],
        ["plugins"],
    ]


NUMBERS = [0, 1, *(pytest.param(number, marks=pytest.mark.slow) for number in range(2, 6))]


def into(stdout, arguments: list[object], stderr=subprocess.PIPE) -> tuple[int, bytes | None]:
    done = python("-m", "engine.cli", *arguments, capture_output=False, text=False,
                  stdout=stdout, stderr=stderr)  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("number", NUMBERS)
def test_a_reader_that_leaves_early_is_not_an_error(digits, number):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        status, errors = into(closed, commands(digits)[number])
    assert status == 0
    assert b"error" not in errors.replace(b"note:", b"")
    assert b"Traceback" not in errors


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
@pytest.mark.parametrize("number", NUMBERS)
def test_a_full_disk_is_an_error(digits, number):
    with open("/dev/full", "wb") as full:
        status, errors = into(full, commands(digits)[number])
    assert status == 1
    assert b"error: " in errors
    assert b"standard output: no space left on device" in errors
    assert b"Traceback" not in errors


@pytest.mark.parametrize(
    "closed", [">&- 2>&-", *(pytest.param(one, marks=pytest.mark.slow) for one in (">&-", "2>&-"))]
)
def test_closed_streams_change_no_status(digits, closed):
    for arguments, status in ((["inspect", digits / "digits.onnx"], 0), (["run", "no.onnx"], 1)):
        line = " ".join(map(str, [sys.executable, "-m", "engine.cli", *arguments, closed]))
        done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, timeout=120)
        assert done.returncode == status
        assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_messages_that_nobody_can_read_change_no_status(digits):
    noted = ["bench", digits / "digits.onnx", "--runs", 2, "--warmup", 0]
    with open("/dev/full", "wb") as full:
        assert into(subprocess.DEVNULL, ["run", "absent.onnx"], full)[0] == 1
        assert into(subprocess.DEVNULL, noted, full)[0] == 0
