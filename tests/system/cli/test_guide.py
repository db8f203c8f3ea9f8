"""The commands do as docs/cli.md shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/cli.md").read_text()
COMMANDS = ("run", "inspect", "bench", "explain", "convert", "rank-table")
BELOW = {"rank-table": [("make",), ("show",)]}


def section(command: str) -> str:
    return GUIDE.partition(f"\n## engine {command}\n")[2].partition("\n## ")[0]


def examples(command: str) -> list[tuple[str, list[str]]]:
    """Each command line in a section, and the lines that it prints according to the guide."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", section(command), re.S | re.M):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            line, _, printed = part.partition("\n")
            found.append((line, [each for each in printed.splitlines() if each.strip()]))
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_the_guide_work_and_print_what_it_says(cli, tmp_path, monkeypatch, command):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINE_DISABLED_BACKENDS", "gpu_trt,ascend_ge")  # as where it was written
    assert examples(command)
    for line, printed in examples(command):
        name, *arguments = shlex.split(line)
        assert name == "engine"
        if arguments[0] == "bench":  # a second of warming up shows nothing here
            arguments += ["--warmup", "0"]
        done = cli(*arguments)
        assert done.status == 0, f"{line}: {done.err}"
        beginnings = {each.split()[0] for each in (done.out + done.err).splitlines() if each}
        for shown in printed:
            first = shown.split()[0]
            if not re.match(r"[\d.]+$", first):  # a measured time, or the rest left out
                assert first in beginnings, f"{line}: {shown}"


def test_every_command_has_its_section(cli):
    listed = cli("--help").out.partition("Commands:\n")[2].partition("\n\n")[0]
    for command in re.findall(r"^  ([\w-]+)", listed, re.M):
        assert len(section(command)) > 100


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_that_the_guide_names_exists(cli, command):
    pages = [cli(command, *below, "--help").out for below in BELOW.get(command, [()])]
    offered = set(re.findall(r"--[a-z-]+", " ".join(pages)))
    named = set(re.findall(r"`(--[a-z-]+)", section(command)))
    assert named <= offered
