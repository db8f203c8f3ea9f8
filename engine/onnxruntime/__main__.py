"""Run a program that is written for onnxruntime, on the engine.

python -m engine.onnxruntime program.py [argument ...]
python -m engine.onnxruntime -m module [argument ...]
"""

from __future__ import annotations

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
    install()
    sys.argv = rest
    if is_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(rest[0])))
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder that `python -m` has put there
    main(sys.argv[1:])
