"""Base of all emulated TensorRT classes: enums by table, the log, null objects, contexts."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from emulated_gpu.machine import MACHINE, Crash, Device

_TABLES = Path(__file__).parents[2]


def _table() -> dict[str, Any]:
    package = __name__.partition(".")[0]
    wanted = os.environ.get("ENGINE_EMULATED_TENSORRT", "") if package == "tensorrt" else ""
    paths = sorted(_TABLES.glob(f"{package}-{wanted}*.json"), key=lambda path: path.name)
    if not paths:
        raise ImportError(f"no table of TensorRT {wanted} in {_TABLES}")
    table: dict[str, Any] = json.loads(paths[-1].read_text())
    return table


TABLE = _table()
VERSION: str = TABLE["version"]
ENUMS = {
    name: IntEnum(name.rpartition(".")[2], members, module="tensorrt")  # type: ignore[misc]
    for name, members in TABLE["enums"].items()
}


class Pybind(type):
    """pybind11's rule for a subclass with an `__init__` of its own: it must call the base's."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        if not getattr(made, "_initialised", False):
            base = next(cls_ for cls_ in cls.__mro__ if cls_.__module__.startswith("tensorrt"))
            raise TypeError(
                f"tensorrt.tensorrt.{base.__name__}.__init__() must be called when overriding "
                "__init__"
            )
        return made


class Callback(metaclass=Pybind):
    """The base of what users derive from."""

    _initialised = False

    def __init__(self) -> None:
        self._initialised = True


class ILogger(Callback):
    Severity: Any = ENUMS["ILogger.Severity"]
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = (
        ENUMS["ILogger.Severity"][name]
        for name in ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE")
    )

    def log(self, severity: Any, msg: str) -> None:
        raise NotImplementedError('Tried to call pure virtual function "ILogger::log"')


class Logger(ILogger):
    def __init__(self, min_severity: Any = ILogger.WARNING) -> None:
        super().__init__()
        self.min_severity = min_severity

    def log(self, severity: Any, msg: str) -> None:
        if severity <= self.min_severity:
            print(f"[TRT] [{severity.name[0]}] {msg}")


class Null(metaclass=Pybind):
    """An object of TensorRT's own: null without a driver, of one device, in its context only."""

    _initialised = True
    _counted = ""

    def __init_subclass__(cls) -> None:
        """Let every call and property that the user has look at the context first."""
        for name, value in list(vars(cls).items()):
            if isinstance(value, property):
                setattr(cls, name, property(_entering(value.fget), _entering(value.fset)))
            elif inspect.isfunction(value) and not name.startswith("_"):
                setattr(cls, name, _entering(value))

    def _make(self, logger: ILogger | None) -> None:
        if logger is not None and not isinstance(logger, ILogger):
            raise TypeError("__init__(): incompatible constructor arguments")
        self._logger = logger
        self._null = MACHINE.driver != "on" or not MACHINE.initialised
        self._device: Device | None = MACHINE.current
        if not self._null:
            self._enter()
        if self._counted:
            MACHINE.live[self._counted] += 1

    def _enter(self) -> Device:
        """At the beginning of each call; what the real one does not survive is a Crash."""
        called = type(self).__name__
        if self._null:
            raise Crash(f"segmentation fault: {called} wraps a null pointer (no driver, no device)")
        current = MACHINE.current
        if current is None:
            raise Crash(f"{called} is used without a current CUDA context")
        if current is not self._device:
            raise Crash(f"{called} of {self._device} is used in the context of {current}")
        return current

    def _log(self, severity: Any, text: str) -> None:
        assert self._logger is not None
        try:
            self._logger.log(severity, text)
        except Exception as error:
            sys.stderr.write(f"[ERROR] Exception caught in log(): {error}\n")

    def _error(self, where: str, code: int, text: str, kind: str = "API Usage Error") -> None:
        self._log(ILogger.ERROR, f"{where}: Error Code {code}: {kind} ({text} In emulated at "
                                 "/_src/emulated.cpp:1)")  # fmt: skip

    def __del__(self) -> None:
        if self._counted and hasattr(self, "_null"):
            MACHINE.live[self._counted] -= 1
            if not self._null:
                if MACHINE.current is not self._device:
                    MACHINE.violation(
                        f"{type(self).__name__} was destroyed while its CUDA context was not "
                        "current"
                    )
                self._destroy()

    def _destroy(self) -> None:
        """Give back what it holds on the device."""


def _entering(call: Any) -> Any:
    if call is None:
        return None

    @functools.wraps(call)
    def entered(self: Null, *arguments: Any, **named: Any) -> Any:
        self._enter()
        return call(self, *arguments, **named)

    return entered


class Made(Null):
    """One that TensorRT alone makes."""

    def __init__(self) -> None:
        raise TypeError("No constructor defined!")

    @classmethod
    def _new(cls, logger: ILogger | None) -> Any:
        made = cls.__new__(cls)
        made._make(logger)
        return made


class Dims:
    """A shape; a sequence, but no tuple."""

    MAX_DIMS = 8

    def __init__(self, shape: Sequence[int] = ()) -> None:
        if len(shape) > self.MAX_DIMS:
            raise ValueError(f"more than {self.MAX_DIMS} dims")
        self._dims = tuple(int(dim) for dim in shape)

    def __len__(self) -> int:
        return len(self._dims)

    def __iter__(self) -> Iterator[int]:
        return iter(self._dims)

    def __getitem__(self, index: Any) -> Any:
        return self._dims[index]

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Dims | tuple | list) else False

    def __hash__(self) -> int:
        return hash(self._dims)

    def __repr__(self) -> str:
        return repr(self._dims)


class IHostMemory(bytes):
    """Bytes that TensorRT gives; a buffer, as the real one is."""

    @property
    def nbytes(self) -> int:
        return len(self)
