"""The command `engine`, from its first moment on.

A module of its own, because all modules of the package `engine` come after numpy, whose import
takes a fifth of a second: with this one, Ctrl-C ends the command quietly then, too.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> int:
    """Run the command line in a process of its own and return its exit status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody ignores it
        signal.signal(signal.SIGINT, _end)
    _find_package()
    from engine.cli.interrupt import expect_interrupts, interrupted, was_interrupted

    try:
        expect_interrupts(_end)
        from engine.cli import main as run

        return run()
    except KeyboardInterrupt:
        pass
    except Exception:  # what is being imported may have made another one of it
        if not was_interrupted():
            raise
    print("interrupted", file=sys.stderr)
    return interrupted()


def _find_package() -> None:
    """Have the package `engine` beside this module found where Python would find another first.

    So it would somebody's own engine.py in a folder that PYTHONPATH names: `engine doctor`, which
    must run for that, says so. Child processes get this path, too.
    """
    own = os.path.dirname(os.path.abspath(__file__))
    for folder in map(os.path.abspath, sys.path):
        if folder == own:
            return
        others = (os.path.join(folder, name) for name in ("engine.py", "engine/__init__.py"))
        if any(map(os.path.isfile, others)):
            sys.path.insert(0, own)
            return


def _end(number: int, frame: FrameType | None) -> NoReturn:
    # Nothing has begun. An exception here would come out of whatever is being imported.
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
