"""Runs the emulated ATC for `client.py`, each time in a child with everything imported already.

Ends with whoever holds the other end of its standard input. A child ends with its client.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading

from emulated_ascend import compiler

_MOST_BYTES = 1 << 20


def main(address: str) -> None:
    """Serve until standard input ends."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            wire, _ = listener.accept()
            if os.fork() == 0:
                if os.fork() == 0:  # whoever waits for it is init: no zombies
                    listener.close()
                    _work(wire)
                os._exit(0)
            os.wait()
            wire.close()


def _work(wire: socket.socket) -> None:
    """Compile once and end."""
    status = 255
    try:
        data, descriptors, _, _ = socket.recv_fds(wire, _MOST_BYTES, 2)
        folder, count, *words = data.decode().split("\0")
        os.chdir(folder)
        for name in [name for name in os.environ if name.startswith("EMULATED_")]:
            del os.environ[name]
        os.environ.update(word.split("=", 1) for word in words[: int(count)])
        for own, given in enumerate(descriptors, 1):
            os.dup2(given, own)
            os.close(given)
        threading.Thread(target=_end_with, args=(wire,), daemon=True).start()
        status = compiler.main(words[int(count) :])
    finally:
        sys.stdout.flush()
        os.close(1)
        os.close(2)
        wire.send(bytes([status]))
        os._exit(status)


def _end_with(wire: socket.socket) -> None:
    wire.recv(1)  # nothing comes: the client ends, or was killed
    os._exit(255)


if __name__ == "__main__":
    main(sys.argv[1])
