"""A process that borrows weights: `python -m engine_testing.borrower BACKEND DESCRIPTOR`.

Started by `sharing.py` before anything is lent. DESCRIPTOR is a socket's, over which it gets the
order and the lent files.
"""

from __future__ import annotations

import pickle
import socket
import sys

from engine.backends import open_backend
from engine_testing.sharing import read_order


def main(name: str, descriptor: int) -> None:
    """Build with what is lent, run once, and write what came of it."""
    backend = open_backend(name)
    with socket.socket(fileno=descriptor) as connection:
        source, options, x, answer = read_order(connection)
    loaded = backend.load(source, options)
    executable = backend.compile(loaded, options)
    loaded.close()
    context = executable.open_context()
    [y] = backend.predict(context, [x], None, None)
    answer.write_bytes(pickle.dumps((y, executable.memory())))
    context.close()
    executable.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
