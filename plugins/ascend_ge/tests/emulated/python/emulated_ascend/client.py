"""Has the server run the emulated ATC, with this process's output, folder and environment."""

import os
import socket
import sys


def main() -> int:
    """Return the exit status."""
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(os.environ["EMULATED_ATC_SERVER"])
        told = [f"{name}={value}" for name, value in os.environ.items() if name[:9] == "EMULATED_"]
        text = "\0".join([os.getcwd(), str(len(told)), *told, *sys.argv[1:]])
        socket.send_fds(wire, [text.encode()], [1, 2])
        status = wire.recv(1)
        return status[0] if status else 255


sys.exit(main())
