"""Install the project as users get it, from wheels, and run it outside the checkout.

    python tests/wheel/rehearse.py WORK_FOLDER            # all but `versions`
    python tests/wheel/rehearse.py WORK_FOLDER versions

Builds a wheel and a source distribution of the core and each plugin, checks what is inside, and
runs each of `INSTALLS` in a clean virtual environment, from a copy of the examples that lies
nowhere near the checkout. Dependencies come from the package index as for any user. uv makes the
environments, except the one of `[cpu]`, which pip makes, as users do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from doors import PAGE, Example, examples  # noqa: E402

PLUGINS = ("cpu", "gpu_trt", "ascend_ge", "mindir", "kit", "telemetry", "serve")
PROJECTS = [ROOT, *(ROOT / "plugins" / name for name in PLUGINS)]
NEEDED = ("py.typed", "METADATA", "licenses/LICENSE")
MINDIR = ROOT / "tests/data/mindir/matmul_256.mindir"
FROZEN = (ROOT / "plugins/kit/tests/frozen/guide_level_1",)
# They stay as they are: the runtime that they leave all nodes to, onnx's evaluator, is wrong there.
SOUND_OF_FROZEN = "not(older_operator_sets)and(not(index_out_of_range))"  # in one word
"""Third parties' backends as they were at earlier levels of the contract, which each core runs."""
REAL = tuple(ROOT / "examples/third_party" / name for name in ("openvino", "jax"))
"""Third parties' backends of real runtimes."""


class Environment(NamedTuple):
    """A virtual environment; `home` is the folder, outside the checkout, where commands run."""

    home: Path
    dist: Path

    def install(self, *packages: str | Path, by_pip: bool = False) -> None:
        """Install packages; those of this project come from the wheels in `dist`."""
        venv = self.home / "venv"
        if by_pip:
            run(sys.executable, "-m", "venv", venv, folder=self.home)
            install = (venv / "bin/python", "-m", "pip", "install", "--quiet")
        else:
            if not venv.exists():
                run("uv", "venv", "--quiet", "--python", sys.executable, venv, folder=self.home)
            install = ("uv", "pip", "install", "--quiet", "--python", venv / "bin/python")
        run(*install, "--find-links", self.dist, *packages, folder=self.home)

    def show(self, command: str, status: int = 0, says: str = "") -> str:
        """Run a command of the environment, print and return its output; check its end."""
        program, *words = command.split()
        print(f"$ {command}")
        output = run(self.home / "venv/bin" / program, *words, folder=self.home, status=status)
        print(output)
        if says not in output:
            sys.exit(f"{command}: expected {says!r} in its output")
        return output

    def python(self, source: str) -> str:
        """Run a program of one line or more; return its output."""
        return run(self.home / "venv/bin/python", "-c", source, folder=self.home)


def run(*command: object, folder: Path, status: int = 0) -> str:
    """Run a command in `folder`; its output, or the end of this script with that shown."""
    words = [str(word) for word in command]
    # A user's shell has nothing of this checkout in it.
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        words, cwd=folder, env=clean, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode != status:
        sys.exit(f"{' '.join(words)}: exit status {done.returncode}, not {status}\n{done.stdout}")
    return done.stdout


def build(dist: Path) -> None:
    """Build every distribution, and check what is in its wheel."""
    for project in PROJECTS:
        run("uv", "build", "--quiet", "--out-dir", dist, project, folder=dist)
    for wheel in sorted(dist.glob("*.whl")):
        names = zipfile.ZipFile(wheel).namelist()
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        page = zipfile.ZipFile(wheel).read(metadata).decode()
        if "\n# " not in page or re.search(r"\]\((?!https:)", page):
            sys.exit(f"{wheel.name} shows a package index no page, or links that lead nowhere")
        for needed in NEEDED:
            if not any(name.endswith(needed) for name in names):
                sys.exit(f"{wheel.name} lacks {needed}")
        stray = [name for name in names if "tests/" in name or name.startswith("plugins/")]
        if stray:
            sys.exit(f"{wheel.name} holds what is not its own: {stray[:5]}")
        print(f"built {wheel.name} ({wheel.stat().st_size // 1024} kB)")


def core_alone(environment: Environment) -> None:
    """The core without a backend names what is missing, with the command."""
    environment.install("inference-engine[cli]")
    environment.show("engine plugins", says='pip install "inference-engine[cpu]"')
    environment.show("engine inspect digits/digits.onnx", says="label")
    for file in ("digits/digits.onnx", "net.mindir"):
        environment.show(f"engine run {file}", status=1, says="inference-engine[cpu]")


def cpu(environment: Environment) -> None:
    """`[cpu]` runs ONNX and MindIR files; the device plugins install beside it."""
    environment.install(
        "inference-engine[cpu]", "inference-engine-gpu-trt", "inference-engine-ascend-ge",
        by_pip=True,
    )  # fmt: skip
    where = environment.python("import engine; print(engine.__file__)").strip()
    if not Path(where).resolve().is_relative_to(environment.home.resolve()):
        sys.exit(f"engine was imported from {where}, not from the installed wheel")
    for command in (
        "engine --version",
        "engine plugins",
        "engine inspect digits/digits.onnx",
        "engine run --example",
        "engine run digits/digits.onnx",
        "engine run net.mindir",
        "python digits/classify.py",
    ):
        environment.show(command)


def cpu_without_mindir(environment: Environment) -> None:
    """Without the format's package a MindIR is an error that names it; ONNX files run."""
    environment.install("inference-engine-cpu", "inference-engine[cli]")
    environment.show("engine run digits/digits.onnx", says="output")
    environment.show("engine run net.mindir", status=1, says="pip install inference-engine-mindir")


def kit_alone(environment: Environment) -> None:
    """The kit comes with the core, and checks its null backend."""
    environment.install("inference-engine-testing")
    environment.python("import engine.testing, engine_testing")
    shutil.copy(ROOT / "plugins/kit/tests/test_null.py", environment.home)
    environment.show(
        "python -m pytest -q -x -p engine_testing.fixtures test_null.py -k predict", says=" passed"
    )


def new_backend(environment: Environment) -> None:
    """A new author gets from the wheels to a backend that passes the kit; its own tox passes."""
    began = time.monotonic()
    environment.install("inference-engine-testing", by_pip=True)
    environment.show("engine plugins new my_runtime", says="inference-engine-my-runtime")
    environment.show("pip install --quiet ./inference-engine-my-runtime")
    environment.show("engine plugins check my_runtime")
    print(f"from an empty environment to a passed kit: {time.monotonic() - began:.0f} s")
    environment.show("pip check")
    project = environment.home / "inference-engine-my-runtime"
    run(
        *("env", f"PIP_FIND_LINKS={environment.dist}", sys.executable, "-m", "tox"),
        *("--workdir", ".tox", "-e", "py,lint"),
        folder=project,
    )
    add_library(project)


def add_library(project: Path) -> None:
    """Give a new backend a compiled library, as its pages show; its wheel is for this platform."""
    page = (project / "docs/packaging.md").read_text()
    section = page.partition("## A compiled library")[2]
    settings, hook = (
        section.split(f"```{kind}\n")[1].split("```")[0] for kind in ("toml", "python")
    )
    (project / "hatch_build.py").write_text(hook)
    with (project / "pyproject.toml").open("a") as file:
        file.write(settings)
    (project / "engine_my_runtime/runtime.cpp").write_text('extern "C" int one() { return 1; }\n')
    run("uv", "build", "--quiet", "--wheel", folder=project)
    [wheel] = (project / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    if wheel.name.endswith("any.whl") or "engine_my_runtime/libruntime.so" not in names:
        sys.exit(f"{wheel.name} is no wheel with a library: {names}")


def telemetry(environment: Environment) -> None:
    """`[telemetry]` brings the observers with what they need, and `engine replay`."""
    environment.install("inference-engine[cpu,telemetry]")
    environment.show(
        "engine run digits/digits.onnx --set common_context.extensions=recorder,prometheus,"
        "opentelemetry --set recorder_extension.path=requests"
    )
    environment.show("engine replay requests digits/digits.onnx", says="equal: 1 request")


def serve(environment: Environment) -> None:
    """`[serve]` brings the server, which answers a client and ends when it is told to."""
    environment.install("inference-engine[cpu,serve]")
    ask = (
        "import json, os, re, signal, subprocess, sys, urllib.request as web\n"
        "server = subprocess.Popen([sys.argv[1], 'serve', 'digits/digits.onnx', '--http-port', "
        "'0', '--grpc-port', '0'], stderr=subprocess.PIPE, text=True)\n"
        "log = ''\n"
        "while 'ready' not in log: log += server.stderr.readline()\n"
        "address = re.search(r'http://[^,]+', log)[0]\n"
        "image = {'name': 'image', 'datatype': 'FP32', 'shape': [1, 1, 8, 8], 'data': [0.0] * 64}\n"
        "body = json.dumps({'inputs': [image]}).encode()\n"
        "answer = json.load(web.urlopen(address + '/v2/models/digits/infer', body))\n"
        "server.send_signal(signal.SIGTERM)\n"
        "print([output['name'] for output in answer['outputs']], 'status', server.wait())\n"
    )
    (environment.home / "ask.py").write_text(ask)
    environment.show(
        f"python ask.py {environment.home}/venv/bin/engine",
        says="['probabilities', 'label'] status 0",
    )


def doors(environment: Environment) -> None:
    """A package for each door works; a broken one for each is listed, and stops nothing."""
    found = examples()
    torn = [
        Example(kind, group, f"torn_{name}", f"torn_{name}", "import no_such_one\n")
        for kind, group, name, _, _ in found
    ]
    packages = [package(environment, example) for example in (*found, *torn)]
    environment.install("inference-engine[cpu]", *packages)
    shutil.copytree(PAGE.parent, environment.home / "docs")
    (environment.home / "tests").mkdir()
    shutil.copy(ROOT / "tests/doors.py", environment.home / "tests/doors.py")
    table = environment.show("engine plugins")
    ready = {tuple(line.split()[:2]) for line in table.splitlines() if " ready " in line}
    for example in found:
        if (example.kind, example.name) not in ready:
            sys.exit(f"{example.kind} {example.name!r} is not listed as ready")
    if table.count("No module named 'no_such_one'") != len(torn):
        sys.exit("not every broken entry is listed with its reason")
    environment.show("python tests/doors.py cpu .")


def package(environment: Environment, example: Example) -> Path:
    """Build the wheel of an example as its author would; return its path."""
    module, distribution = example.target.partition(":")[0], f"example-{example.name}"
    folder = environment.home / distribution
    folder.mkdir()
    (folder / f"{module}.py").write_text(example.source)
    (folder / "pyproject.toml").write_text(f"""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "{distribution}"
version = "1"
dependencies = ["inference-engine"]
[project.entry-points."{example.group}"]
{example.name} = "{example.target}"
[tool.hatch.build.targets.wheel]
only-include = ["{module}.py"]
""")
    run("uv", "build", "--quiet", "--wheel", "--out-dir", folder, folder, folder=folder)
    [wheel] = folder.glob("*.whl")
    return wheel


def versions(environment: Environment) -> None:
    """Backends of earlier levels, of the template, OpenVINO and JAX are right beside two cores.

    They are wheels, installed by pip beside this core and one of the next version.
    """
    home, dist = environment
    this = run(sys.executable, ROOT / ".ci/version.py", folder=home).split()[1]
    major, minor, _ = this.split(".")
    later = f"{major}.{int(minor) + 1}.0"
    tree = home / "later"
    unwanted = shutil.ignore_patterns(".*", "__pycache__", "tests", "bench", "examples")
    shutil.copytree(ROOT, tree, ignore=unwanted)
    shutil.copytree(ROOT / ".ci", tree / ".ci")
    run(sys.executable, tree / ".ci/version.py", later, folder=home)
    for project in (tree, tree / "plugins/kit"):
        run("uv", "build", "--quiet", "--wheel", "--out-dir", dist, project, folder=home)
    wheels = home / "frozen"
    for project in (*FROZEN, *REAL):
        run("uv", "build", "--quiet", "--wheel", "--out-dir", wheels, project, folder=home)
    newest = Environment(home / "newest", dist)
    newest.home.mkdir()
    newest.install(f"inference-engine-testing=={later}")
    newest.show("engine plugins new newest --out newest")
    run("uv", "build", "--quiet", "--wheel", "--out-dir", wheels, "newest", folder=newest.home)
    for version in (this, later):
        beside = Environment(home / version, dist)
        beside.home.mkdir()
        kit = f"inference-engine-testing=={version}"
        beside.install(kit, *sorted(wheels.glob("*.whl")), by_pip=True)
        beside.show("engine --version", says=version)
        beside.show("pip check")
        beside.show("engine plugins", says="ready")
        beside.show(f"engine plugins check mine -k {SOUND_OF_FROZEN}")
        beside.show("engine plugins check newest")
        for project in REAL:
            beside.show(f"engine plugins check {project.name}")


INSTALLS = (core_alone, cpu, cpu_without_mindir, kit_alone, new_backend, telemetry, serve, doors)
SLOW = (versions,)


def rehearse(work: Path, names: list[str]) -> None:
    # uv keeps wheels by their path: in a folder of its own it finds none of an earlier run.
    work.mkdir(parents=True)
    dist = Path(tempfile.mkdtemp(prefix="dist-", dir=work))
    build(dist)
    for check in [each for each in SLOW if each.__name__ in names] or INSTALLS:
        print(f"\n== {check.__name__}: {check.__doc__}\n")
        with tempfile.TemporaryDirectory(prefix="engine-rehearsal-") as away:
            home = Path(away)
            shutil.copytree(ROOT / "examples/digits", home / "digits")
            shutil.copy(MINDIR, home / "net.mindir")
            (home / "pytest.ini").touch()  # so that pytest looks for none in the folders above
            check(Environment(home, dist))


if __name__ == "__main__":
    if len(sys.argv) < 2 or not {*sys.argv[2:]} <= {check.__name__ for check in SLOW}:
        sys.exit(__doc__)
    folder = Path(sys.argv[1]) / "rehearsal"
    shutil.rmtree(folder, ignore_errors=True)
    rehearse(folder, sys.argv[2:])
