"""A decorator for functions that say what to pass instead of a keyword that they do not have."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def advised(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: an unknown argument is a TypeError that says what to pass instead.

    name: what users call the function, which may have a table in `engine.runtime.keyword_hints`.
    For functions that run once in a while: a call takes half a microsecond more.
    """

    def decorator(function: Callable[P, R]) -> Callable[P, R]:
        code = function.__code__
        count = code.co_argcount
        names = code.co_varnames[: count + code.co_kwonlyargcount]
        known = frozenset(names)

        @wraps(function)
        def checked(*arguments: P.args, **keywords: P.kwargs) -> R:
            if len(arguments) > count or not known.issuperset(keywords):
                from engine.runtime.keyword_hints import unexpected  # rare

                raise unexpected(name, names, count, arguments, keywords)
            return function(*arguments, **keywords)

        function.__qualname__ = name  # which CPython says where an argument is missing
        return checked

    return decorator
