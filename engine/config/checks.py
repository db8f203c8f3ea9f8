"""Checks of arguments, in MindSpore Lite's words: scripts and their tests match on these texts.

Each returns the value as it is to be kept. `name` is what the message calls it. A numpy integer
passes for an int; a bool does not, though it does there: True is hardly meant as device 1.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, TypeVar

T = TypeVar("T")
Choice = TypeVar("Choice", bound=str)


def require(name: str, value: object, kind: type[T]) -> T:
    """Return `value` if it is a `kind`, else raise TypeError."""
    if not _is(value, kind):
        raise TypeError(f"{name} must be {kind.__name__}, but got {type(value)}.")
    return value  # type: ignore[return-value]  # what _is has found


def require_int(name: str, value: object) -> int:
    """Return `value` as an int if it is an integer, else raise TypeError."""
    return int(require(name, value, int))


def require_count(name: str, value: object, caller: str = "") -> int:
    """Return `value` as an int of 0 or more, else raise TypeError or ValueError.

    caller: what the text of the ValueError begins with.
    """
    count = require_int(name, value)
    if count < 0:
        raise ValueError(f"{caller}{name} must be a non-negative int. Got {count}")
    return count


def require_seconds(name: str, value: object) -> float:
    """Return a time limit above 0, infinite where no float is as large; else raise."""
    if not isinstance(value, (float, Real)) or isinstance(value, bool):  # a float is quickest
        raise TypeError(f"{name} must be a number of seconds, but got {type(value)}")
    if not value > 0:  # type: ignore[operator]  # a Real has an order, which typeshed leaves out
        raise ValueError(f"{name} must be above 0 s, but got {value}")
    return math.inf if isinstance(value, int) and value > 1 << 1000 else float(value)


def require_choice(name: str, value: object, *choices: Choice) -> Choice:
    """Return `value` if it is one of `choices`, else raise TypeError or ValueError."""
    text = require(name, value, str)
    for choice in choices:
        if choice == text:
            return choice
    raise ValueError(f"{name} must be in [{', '.join(choices)}], but got {text}.")


def require_list(name: str, value: object, kind: type[T]) -> list[T]:
    """Return a copy of `value` if it is a list of `kind`, else TypeError."""
    return _elements(name, require(name, value, list), kind)


def require_shape(name: str, value: object) -> tuple[int, ...]:
    """Return a list or tuple of integers as a tuple, else raise TypeError."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} must be list or tuple, but got {type(value)}.")
    return tuple(int(dim) for dim in _elements(name, value, int))


def require_watchers(progress: object, cancel: object) -> None:
    """Raise TypeError unless `progress` is callable and `cancel` a token; either may be None."""
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be callable, but got {type(progress)}.")
    if cancel is not None and not hasattr(cancel, "cancelled"):
        raise TypeError(f"cancel must be a CancelToken, but got {type(cancel)}.")


def check_decryption(dec_key: object, dec_mode: object, dec_num_parallel: object) -> None:
    """Check how a file is to be decrypted. Raises TypeError, ValueError."""
    require("dec_key", dec_key, bytes)
    mode = require("dec_mode", dec_mode, str)
    count = require_int("dec_num_parallel", dec_num_parallel)
    if not 0 <= count <= 64:
        raise ValueError(
            f"dec_num_parallel should be in range [0, 64], but got {count}; 0 leaves it open"
        )
    if not mode:
        raise ValueError("dec_mode must not be empty string! The usual mode is 'AES-GCM'")


def _elements(name: str, value: list[Any] | tuple[Any, ...], kind: type[T]) -> list[T]:
    for index, element in enumerate(value):
        if not _is(element, kind):
            raise TypeError(
                f"{name} element must be {kind.__name__}, but got {type(element)} at index {index}."
            )
    return list(value)


def _is(value: object, kind: type) -> bool:
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    return isinstance(value, kind)
