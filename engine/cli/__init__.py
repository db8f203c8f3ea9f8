"""The command line: `engine run`, `engine inspect`, `engine bench` and the rest.

One module a command; `app` joins them. Nothing here is loaded by `import engine`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]

_NEEDED = ("click", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status; `engine --help` lists what they mean.

    arguments: what follows the program's name; None for sys.argv's, in a process that then ends.
    """
    from engine.cli.interrupt import expect_interrupts, interrupted, was_interrupted

    if arguments is None:
        expect_interrupts()
    try:
        from engine.cli.app import run
    except (ImportError, KeyboardInterrupt) as error:
        # It takes a moment to load all this, and what is imported may translate an interrupt.
        if isinstance(error, KeyboardInterrupt) or was_interrupted():
            print("interrupted", file=sys.stderr)
            return interrupted()
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        print(
            f"error: the command line needs {error.name}, which is not installed; "
            'run: pip install "inference-engine[cli]"',
            file=sys.stderr,
        )
        return 2
    return run(arguments)
