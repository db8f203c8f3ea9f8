"""Run a program that is written for onnxruntime, on the engine.

python -m engine.onnxruntime program.py [argument ...]
python -m engine.onnxruntime -m module [argument ...]
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys

from engine.onnxruntime.stand_in import install

USAGE = "usage: python -m engine.onnxruntime (program.py | -m module) [argument ...]"


def main(arguments: list[str]) -> None:
    """Run what the arguments name, as Python itself would."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return
    is_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if is_module else arguments
    if not rest or rest[0].startswith("-"):
        sys.exit(f"{USAGE}\nwhich program is to run?")
    if not is_module and not os.path.exists(rest[0]):
        sys.exit(f"{rest[0]}: No such file or directory\n{USAGE}")
    install()
    sys.argv = rest
    if is_module:
        sys.path.insert(0, os.getcwd())
        if missing := _missing(rest[0]):
            sys.exit(f"{sys.executable}: No module named {missing}")
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(rest[0])))
        runpy.run_path(rest[0], run_name="__main__")


def _missing(name: str) -> str:
    """Return the module that is not there to be run as `name`: it, or a package's __main__."""
    try:
        spec = None if name.startswith(".") else importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # a package above it lacks another module
        return name
    if spec is None:
        return name
    is_package = spec.submodule_search_locations is not None
    return _missing(f"{name}.__main__") if is_package else ""


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder that `python -m` has put there
    main(sys.argv[1:])
