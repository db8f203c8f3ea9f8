"""Emulated shared libraries, which `ctypes.CDLL` gives under the names of CANN's.

Their functions are C function pointers made by ctypes, so arguments are converted as for the real
ones: a wrong number or type of arguments is an error of ctypes here too.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from emulated_ascend.machine import machine

INTERNAL = 4  # HCCL_E_INTERNAL; other libraries' calls are failed by it as well as by any number


class Library:
    """One library: `function` adds a function to it."""

    def function(self, *arguments: Any, counted: bool = True) -> Callable[..., Any]:
        """Make a Python function one of this library, with C arguments of these types."""

        def add(function: Callable[..., int]) -> Callable[..., int]:
            name = function.__name__

            @functools.wraps(function)
            def call(*given: Any) -> int:
                with machine.lock:
                    machine.calls[name] += counted
                    code = machine.planned(name)
                if code:
                    return code
                try:
                    return function(*given)
                except Exception as error:  # an exception cannot cross C
                    machine.fault(f"{name}: {error!r}")
                    return INTERNAL

            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(call))
            return function

        return add


MODULES = {
    "libhccl.so": "emulated_ascend.hccl",
    "libascendcl.so": "emulated_ascend.ascendcl",
}
"""The libraries by name, and where they are emulated."""

libraries: dict[str, Library] = {}
missing: set[str] = set()
"""Libraries that a test takes away."""


def find(name: object) -> Library | None:
    """Return an emulated library; None for one that is none; OSError for one that is missing."""
    if name in missing:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")
    if name not in MODULES:
        return None
    importlib.import_module(MODULES[str(name)])
    return libraries[str(name)]


def install() -> None:
    """Have ctypes.CDLL find the emulated libraries, as long as an emulated machine is imported."""
    if getattr(ctypes.CDLL, "is_emulating", False):
        return
    real = ctypes.CDLL

    class CDLL(real):  # type: ignore[valid-type, misc]
        is_emulating = True

        def __new__(cls, name: Any = None, *arguments: Any, **options: Any) -> Any:
            here = sys.modules.get("emulated_ascend.libraries")
            library = here.find(name) if here is not None else None
            return library or super().__new__(cls)

    ctypes.CDLL = CDLL  # type: ignore[misc]
