"""Put this package in onnxruntime's place, for programs that cannot be changed."""

from __future__ import annotations

import multiprocessing.spawn
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from engine.onnxruntime.genuine import genuine

NAME = "onnxruntime"
_OWN = "engine.onnxruntime"
_MODULES = (
    "capi",
    "capi._pybind_state",
    "capi.onnxruntime_pybind11_state",
    "capi.onnxruntime_inference_collection",
)
"""The modules of onnxruntime that are this package's then; all others remain its own."""


def install() -> None:
    """Have `import onnxruntime` give this package from now on, in spawned processes too.

    To be called before the program imports onnxruntime: names that it has taken stay as they are.
    """
    if getattr(sys.modules.get(NAME), "genuine", _OWN) is not _OWN:
        return
    package = import_module(_OWN)
    stand_in = ModuleType(NAME, package.__doc__)
    spec = ModuleSpec(NAME, None, is_package=True) if genuine is None else genuine.__spec__
    stand_in.__spec__ = spec
    if genuine is not None:  # where its other modules are found
        stand_in.__path__ = genuine.__path__
        stand_in.__file__ = genuine.__file__
    stand_in.__dict__["genuine"] = genuine
    stand_in.__dict__["__getattr__"] = lambda name: getattr(package, name)
    stand_in.__dict__["__version__"] = package.__version__
    stand_in.__dict__["__all__"] = package.__all__
    for name in _MODULES:
        sys.modules[f"{NAME}.{name}"] = import_module(f"{_OWN}.{name}")
    stand_in.__dict__["capi"] = sys.modules[f"{NAME}.capi"]
    sys.modules[NAME] = stand_in
    spawn: Any = multiprocessing.spawn
    spawn.get_preparation_data = _telling(spawn.get_preparation_data)


class _Installed:
    """Installs where it is unpickled: in a spawned process, before that imports the program."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return install, ()


def _telling(get: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return what multiprocessing sends to a process that it spawns, with the word to install."""

    def get_preparation_data(*given: Any, **named: Any) -> dict[str, Any]:
        return {_OWN: _Installed(), **get(*given, **named)}

    return get_preparation_data
