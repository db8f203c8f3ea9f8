"""Find the parts of the contract that a plugin asks for and this core does not have."""

from __future__ import annotations

import re
from types import ModuleType

from engine.hookspecs import LEVEL

CONTRACT = f"1.{LEVEL}"

_UNKNOWN_NAME = re.compile(r"cannot import name '(\w+)' from '(engine(?:\.[\w.]*)?)'")
_UNKNOWN_FIELD = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")


class NewerContract(Exception):
    """A plugin needs a later level of the contract than this core's."""

    def __init__(self, level: int) -> None:
        super().__init__(f"it needs contract 1.{level}, this core has {CONTRACT}")


def lacking(error: BaseException) -> str:
    """Return what this core lacks if `error` comes of that, as a reason; "" for other errors.

    A plugin that was written for a later level imports a name, or gives a field, that is not there
    yet. One whose BackendInfo says its level is a NewerContract.
    """
    if isinstance(error, NewerContract):
        return str(error)
    missing = ""
    if isinstance(error, ModuleNotFoundError):
        if (error.name or "").startswith("engine."):
            missing = f"the module {error.name}"
    elif isinstance(error, ImportError):
        if found := _UNKNOWN_NAME.match(str(error)):
            missing = f"{found[2]}.{found[1]}"
    elif isinstance(error, AttributeError):
        missing = _missing_member(error.obj, error.name)
    elif isinstance(error, TypeError) and (found := _UNKNOWN_FIELD.match(str(error))):
        missing = f"{found[1]}.{found[2]}" if _is_contract_class(found[1], error) else ""
    return f"it needs {missing}, which contract {CONTRACT} of this core lacks" if missing else ""


def _missing_member(owner: object, name: str | None) -> str:
    """Return the contract's member of which a plugin asked, as it would write it."""
    if isinstance(owner, ModuleType):
        where = owner.__name__
    elif isinstance(owner, type):
        where = f"{owner.__module__}.{owner.__qualname__}"
    else:
        return ""
    is_contract = where.startswith(("engine.types", "engine.hookspecs", "engine.errors"))
    return f"{where}.{name}" if is_contract else ""


def _is_contract_class(name: str, error: TypeError) -> bool:
    """Return whether a class that a plugin has called is the contract's, not the plugin's own."""
    from engine import types  # rare

    kind, caller = getattr(types, name, None), error.__traceback__
    while caller is not None and caller.tb_next is not None:
        caller = caller.tb_next
    meant = kind if caller is None else caller.tb_frame.f_globals.get(name, kind)
    return isinstance(kind, type) and kind.__module__ == types.__name__ and meant is kind
