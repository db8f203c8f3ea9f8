"""Child processes import what their parent does, and heed what it was told to leave out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

START = """
import subprocess, sys
from pathlib import Path
sys.path[:0] = {first}
from engine.host.child import command, environment
subprocess.run(command("-c", {code!r}), env=environment(), check=True)
"""


def child_of(code: str, *flags: str, first: str = "[]", cwd: Path | None = None, **env: str) -> str:
    """Return the output of a child of a Python that was started with `flags`."""
    program = START.format(code=code, first=first)
    ran = subprocess.run(
        [sys.executable, *flags, "-c", program],
        capture_output=True, text=True, check=True, cwd=cwd, env={**os.environ, **env},
    )  # fmt: skip
    return ran.stdout.strip()


@pytest.mark.parametrize("flag", ["-I", "-E"])
def test_variables_for_python_are_left_out_where_the_parent_leaves_them_out(flag: str) -> None:
    code = "import sys; print(sys.flags.inspect)"
    assert child_of(code, PYTHONINSPECT="1") == "1"
    assert child_of(code, flag, PYTHONINSPECT="1") == "0"


def test_packages_of_the_user_are_left_out_where_the_parent_leaves_them_out() -> None:
    code = "import sys; print(sys.flags.no_user_site, sys.flags.no_site)"
    assert child_of(code, PYTHONNOUSERSITE="") == "0 0"
    assert child_of(code, "-s", PYTHONNOUSERSITE="") == "1 0"
    assert child_of(code, "-I") == "1 0"
    paths = os.pathsep.join(sys.path)  # without `site` no package is found by itself
    assert child_of(code, "-S", PYTHONPATH=paths, PYTHONNOUSERSITE="") == "0 1"


def test_entries_of_the_path_that_mean_something_else_in_a_variable_are_left_out(
    tmp_path: Path,
) -> None:
    """A Path is passed over by imports; of /elsewhere:inner two folders would be made."""
    (tmp_path / "inner").mkdir()
    code = "import sys; print([p for p in sys.path if 'inner' in p or 'elsewhere' in p])"
    for first in ('[Path("/elsewhere")]', '["/elsewhere:inner"]'):
        assert child_of(code, first=first, cwd=tmp_path) == "[]"
