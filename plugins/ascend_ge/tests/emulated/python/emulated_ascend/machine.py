"""The state of the emulated machine: devices, handles, threads' contexts, planned failures."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from emulated_ascend.memory import Memory

HERE = Path(__file__).parents[2]
_CODES = re.findall(r"(\d+) (\w+)", (HERE / "codes.txt").read_text())

OK = 0
errors = SimpleNamespace(**{name: int(number) for number, name in _CODES})  # aclError

F = TypeVar("F", bound=Callable[..., Any])


class EmulatedFault(RuntimeError):
    """An error that would be a crash, a hang or a wrong result on a real machine."""


@dataclass(slots=True)
class Context:
    """An ACL context. `is_default`: the one that set_device makes, which nobody destroys."""

    device: int
    is_default: bool = False
    streams: set[int] = field(default_factory=set)
    models: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Failure:
    """A call that is to fail: the `after`-th from now on, `times` times."""

    code: int
    after: int
    times: int
    message: str


class Machine:
    """One machine in one process. Everything is guarded by `lock`, as pyACL is by the GIL."""

    def __init__(self) -> None:
        config = json.loads(os.environ.get("EMULATED_ASCEND", "{}"))
        self.devices: int = config.get("devices", 2)
        self.soc: str | None = config.get("soc", "Ascend910B3")
        self.memory_bytes: int = config.get("memory_bytes", 1 << 30)
        self.memory_kind: int = config.get("memory_kind", 1)  # ACL_HBM_MEM; 0 is ACL_DDR_MEM
        self.lock = threading.RLock()
        self.memory = Memory(self.fault)
        self.objects: dict[int, Any] = {}
        self.models: dict[int, Any] = {}
        self.faults: list[str] = []
        self.calls: Counter[str] = Counter()
        self.copied: Counter[str] = Counter()  # bytes, by "to device", "to host", "on device"
        self.waits = 0  # of threads, to their ends, for streams with work
        self.exports: dict[str, int] = {}  # keys of memory that other processes may open: where
        self.imports: dict[str, int] = {}  # keys of memory of others that is open here: where
        self.host_memory: dict[int, Any] = {}  # page-locked, by address
        self.delay_s = 0.0
        self.link_error = 0  # an HcclResult that every group reports from now on
        self.is_initialized = False
        self.is_finalized = False
        self.open_devices: Counter[int] = Counter()
        self._defaults: dict[int, int] = {}
        self._dead: dict[int, str] = {}
        self._failures: dict[str, list[Failure]] = {}
        self._local = threading.local()
        self._next_handle = 0x0E00_0000_0000
        self._next_model = 1

    def fail(self, name: str, code: int, after: int = 0, times: int = 1, message: str = "") -> None:
        """Have a call fail: `fail("rt.malloc", 207018, after=2)` is the third one from now."""
        self._failures.setdefault(name, []).append(Failure(code, after, times, message))

    def heal(self) -> None:
        """Take back all failures that were planned and have not come."""
        self._failures.clear()

    def slow(self, delay_s: float) -> None:
        """Have every run of a model take at least so long on the device."""
        self.delay_s = delay_s

    def live(self) -> dict[str, int]:
        """Count what is alive, by kind; {} after a clean end."""
        with self.lock:
            kinds = Counter(
                type(item).__name__
                for item in self.objects.values()
                if not (isinstance(item, Context) and item.is_default)
            )
            kinds["Model"] = len(self.models)
            kinds["Memory"] = len(self.memory.live())
            kinds["HostMemory"] = len(self.host_memory)
            kinds["Export"] = len(self.exports)
        return {kind: count for kind, count in kinds.items() if count}

    def fault(self, text: str) -> EmulatedFault:
        """Record a fault; the caller raises it."""
        self.faults.append(text)
        return EmulatedFault(text)

    def say(self, text: str) -> None:
        """Have get_recent_err_msg give this text to this thread."""
        self._local.message = text

    def take_message(self) -> str | None:
        """Return it, once."""
        message = getattr(self._local, "message", None)
        self._local.message = None
        return message

    def new(self, thing: Any) -> int:
        """Return a handle for a new object."""
        self._next_handle += 0x40
        self.objects[self._next_handle] = thing
        return self._next_handle

    def get(self, handle: int, kind: type[Any]) -> Any:
        """Return the object behind a handle of this kind; a fault for any other number."""
        thing = self.objects.get(handle)
        if isinstance(thing, kind):
            return thing
        if thing is not None:
            was = f"a handle of a {type(thing).__name__}"
        elif handle in self._dead:
            was = f"a {self._dead[handle]} that was destroyed"
        else:
            was = "no handle at all"
        raise self.fault(f"expected a handle of a {kind.__name__}, got {handle:#x}, {was}")

    def drop(self, handle: int, kind: type[Any]) -> Any:
        """Destroy the object behind a handle."""
        thing = self.get(handle, kind)
        del self.objects[handle]
        self._dead[handle] = kind.__name__
        return thing

    def add_model(self, model: Any) -> int:
        """Return a model id for a loaded model."""
        number = self._next_model
        self._next_model += 1
        self.models[number] = model
        return number

    @property
    def current(self) -> int:
        """The calling thread's context, 0 without one or when it was destroyed."""
        handle: int = getattr(self._local, "context", 0)
        return handle if handle in self.objects else 0

    @current.setter
    def current(self, handle: int) -> None:
        self._local.context = handle

    def default_context(self, device: int) -> int:
        """Return the context that set_device makes for a device."""
        if device not in self._defaults:
            self._defaults[device] = self.new(Context(device, is_default=True))
        return self._defaults[device]

    def drop_default_context(self, device: int) -> None:
        """A device was reset."""
        handle = self._defaults.pop(device, 0)
        self.objects.pop(handle, None)

    def planned(self, name: str) -> int:
        """Return the code with which this call is to fail, 0 if it is not."""
        for failure in self._failures.get(name, []):
            if failure.after > 0:
                failure.after -= 1
            elif failure.times > 0:
                failure.times -= 1
                if failure.message:
                    self.say(failure.message)
                return failure.code
        return OK


machine = Machine()

_KINDS = {"int": int, "str": str, "list": list, "dict": dict, "bytes": bytes, "any": object}


def _surface() -> dict[str, tuple[list[str], str]]:
    """Return pyACL's functions as CANN documents them: their arguments, and what they return."""
    found = {}
    for group, rows in json.loads((HERE / "surface.json").read_text()).items():
        for signature, names in rows.items():
            arguments, _, returns = signature.partition("-> ")
            for name in names.split():
                found[f"{group}.{name}".lstrip(".")] = arguments.split(), returns
    return found


SURFACE = _surface()


def api(name: str, waits: bool = False) -> Callable[[F], F]:
    """Make a function one of pyACL's: strict arguments, planned failures, one call at a time.

    waits: it lets the GIL go while it waits, so it takes the machine's lock by itself.
    """
    arguments, returns = SURFACE[name]
    kinds = [_KINDS[kind.rstrip("?")] for kind in arguments]

    def wrap(function: F) -> F:
        assert len(inspect.signature(function).parameters) == len(kinds), name

        @functools.wraps(function)
        def call(*given: Any) -> Any:
            for index, (argument, kind) in enumerate(zip(given, kinds, strict=False)):
                # PyArg_ParseTuple takes ints and str only: no numpy scalar, no None.
                if not isinstance(argument, kind):
                    raise TypeError(
                        f"acl.{name}: argument {index + 1} must be {kind.__name__}, "
                        f"not {type(argument).__name__}"
                    )
            with machine.lock:
                machine.calls[name] += 1
                code = machine.planned(name)
                if code != OK:
                    return _failed(returns, code)
                if not waits:
                    return function(*given)
            return function(*given)

        call.emulated_name = name  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return wrap


def maker(name: str, kind: Callable[[], Any]) -> Callable[[], int]:
    """Return a function of pyACL that makes an object."""
    return api(name)(lambda: machine.new(kind()))


def destroyer(name: str, kind: type[Any]) -> Callable[[int], int]:
    """Return a function of pyACL that destroys an object."""

    def destroy(handle: int) -> int:
        machine.drop(handle, kind)
        return OK

    return api(name)(destroy)


def _failed(returns: str, code: int) -> Any:
    if returns == "ret":
        return code
    if returns in ("handle", "value"):
        return 0
    if returns == "none":
        return None
    return (*([0] * returns.count("value")), code)
