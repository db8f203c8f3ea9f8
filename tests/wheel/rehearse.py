"""Install the project as users get it, from wheels, and run it outside the checkout.

    python tests/wheel/rehearse.py WORK_FOLDER

Builds a wheel and a source distribution of the core and each plugin, checks what is inside,
installs `inference-engine[cpu]` and the two device plugins from the wheels alone into a clean
virtual environment, and runs the digits example from a copy that lies nowhere near the checkout.
Dependencies come from the package index as for any user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = [
    ROOT,
    *(ROOT / "plugins" / name for name in ("cpu", "gpu_trt", "ascend_ge", "mindir", "kit")),
]
NEEDED = ("py.typed", "METADATA", "licenses/LICENSE")


def run(*command: object, folder: Path) -> str:
    """Run a command in `folder`; its output, or the end of this script with that shown."""
    words = [str(word) for word in command]
    # A user's shell has nothing of this checkout in it.
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        words, cwd=folder, env=clean, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def build(dist: Path) -> None:
    for project in PROJECTS:
        run(sys.executable, "-m", "build", "--outdir", dist, project, folder=dist)
    for wheel in sorted(dist.glob("*.whl")):
        names = zipfile.ZipFile(wheel).namelist()
        for needed in NEEDED:
            if not any(name.endswith(needed) for name in names):
                sys.exit(f"{wheel.name} lacks {needed}")
        stray = [name for name in names if "tests/" in name or name.startswith("plugins/")]
        if stray:
            sys.exit(f"{wheel.name} holds what is not its own: {stray[:5]}")
        print(f"built {wheel.name} ({wheel.stat().st_size // 1024} kB)")


def rehearse(work: Path) -> None:
    dist = work / "dist"
    dist.mkdir(parents=True)
    build(dist)
    with tempfile.TemporaryDirectory(prefix="engine-rehearsal-") as away:
        home = Path(away)
        venv.create(home / "venv", with_pip=True)
        python = home / "venv/bin/python"
        engine = home / "venv/bin/engine"
        run(
            python, "-m", "pip", "install", "--quiet", "--find-links", dist,
            "inference-engine[cpu]", "inference-engine-gpu-trt", "inference-engine-ascend-ge",
            folder=home,
        )  # fmt: skip
        shutil.copytree(ROOT / "examples/digits", home / "digits")
        where = run(python, "-c", "import engine; print(engine.__file__)", folder=home).strip()
        if not Path(where).resolve().is_relative_to(home.resolve()):
            sys.exit(f"engine was imported from {where}, not from the installed wheel")
        for command in (
            (engine, "--version"),
            (engine, "plugins"),
            (engine, "inspect", "digits/digits.onnx"),
            (engine, "run", "--example"),
            (engine, "run", "digits/digits.onnx"),
            (python, "digits/classify.py"),
        ):
            print(f"$ {' '.join(Path(str(word)).name for word in command)}")
            print(run(*command, folder=home))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1]) / "rehearsal"
    shutil.rmtree(folder, ignore_errors=True)
    rehearse(folder)
