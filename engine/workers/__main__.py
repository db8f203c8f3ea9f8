"""Be a worker of a MultiDeviceRunner: `python -m engine.workers MESSAGES LIFELINE`.

A program of its own, found by name: it imports nothing of the script that starts it, so that this
needs no `__main__` guard and may be a notebook. The arguments are descriptors; what is to be built,
keys of encrypted models among it, comes over the first. See engine.host.serve.
"""

from __future__ import annotations

from engine.host.serve import main

if __name__ == "__main__":
    main("engine.workers.child:serve")
