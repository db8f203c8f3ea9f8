"""Type hints say what the docs say: mypy, strict, over scripts as users write them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is in tox's environment `types`")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MARK = re.compile(r"  # type: ignore\[[a-z-]+\]$", re.MULTILINE)


def complaints(path: Path) -> list[str]:
    """The lines of a script at which mypy finds an error, with what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["right_uses.py", "wrong_uses.py"])
def test_a_script_that_says_of_each_line_what_is_wrong_with_it_is_clean(name: str) -> None:
    assert complaints(HERE / name) == []  # a mark where nothing is wrong is an error as well


@pytest.mark.slow
def test_every_marked_line_of_the_wrong_uses_is_found_and_no_other(tmp_path: Path) -> None:
    text = (HERE / "wrong_uses.py").read_text()
    marked = {number for number, line in enumerate(text.splitlines(), 1) if MARK.search(line)}
    bare = tmp_path / "bare.py"
    bare.write_text(MARK.sub("", text))
    found = {int(line.split(":")[1]) for line in complaints(bare)}
    assert len(marked) > 50
    assert found == marked
