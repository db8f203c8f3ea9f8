"""A backend with means of its own to share weights between processes: the null one, and a file.

Source of a plugin "vendor". It lends the weights as they are in the master, five times as
large as the file's, so that a slave that read the model's own would be found out.
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from engine.errors import BackendUnavailable
from engine.hookspecs import hookimpl
from engine.types import Capability, SharedWeights
from engine_testing import null_device as null
from engine_testing.null_device import *  # noqa: F403

FOLDER = Path(os.environ.get("VENDOR_FOLDER", "."))
EVERYTHING = os.environ.get("VENDOR_FORM", "yes") == "yes"


@hookimpl
def engine_backend():
    info = null.engine_backend()
    more = {Capability.SHARE_WEIGHTS}
    less = set() if EVERYTHING else {Capability.COMPILE_CACHE}
    return replace(info, name="vendor", capabilities=(info.capabilities | more) - less)


@hookimpl
def engine_compile(loaded, options):
    executable = null.engine_compile(loaded, options)
    executable.lend = options.lend
    shared = options.shared_weights
    if shared is not None:
        assert shared.owner is None
        assert len(shared.digest) == 64
        with np.load(shared.files["weights of the model"]) as weights:
            executable.update(dict(weights), additive=False)
        with (FOLDER / "tokens").open("ab") as file:
            file.write(shared.token)
    return executable


class Owner:
    def close(self):
        (FOLDER / "closed").touch(exist_ok=False)


@hookimpl
def engine_share_weights(executable, pids):
    if (FOLDER / "refuse").exists():
        raise BackendUnavailable("the driver has no such calls", "vendor")
    if (FOLDER / "fail").exists():
        raise KeyError("a mistake")
    assert executable.lend == "machine"
    weights = executable.inner.evaluator.rt_inits_
    path = FOLDER / "weights.npz"
    np.savez(path, **{name: 5 * value for name, value in weights.items()})
    return SharedWeights(
        backend="vendor",
        device=null.DEVICE,
        nbytes=path.stat().st_size,
        files={"weights of the model": path},
        token=repr(pids).encode(),
        owner=Owner(),
    )
