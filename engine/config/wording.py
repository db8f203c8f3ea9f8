"""MindSpore Lite's words around an error's text, and the text without them.

Its scripts match on "build_from_file failed! Error is ..." and on "data size not equal! ..."; the
command line and the converter, whose users called no such method, say the rest alone. Here is the
one place that adds these words: those that name a method in front, and those about an input behind,
since most callers do not know them and have to read first which input it is, what it should be and
what came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

E = TypeVar("E", bound=Exception)

_ATTRIBUTE = "_text_of_its_own"
_WORDS = "_words_behind"


def prefixed(error: E, prefix: str) -> E:
    """Put `prefix` in front of the text of an error, which is changed in place and returned."""
    setattr(error, _ATTRIBUTE, own_text(error))
    error.args = (f"{prefix}{error}", *error.args[1:])
    return error


def followed(error: E, words: str) -> E:
    """Put `words` in parentheses behind the text of an error, in front of those that stand there.

    The error is changed in place and returned.
    """
    own, behind = own_text(error), getattr(error, _WORDS, "")
    words = f"{words} {behind}" if behind else words
    setattr(error, _ATTRIBUTE, own)
    setattr(error, _WORDS, words)
    error.args = (f"{own} ({words})", *error.args[1:])
    return error


def translated(error: E, translate: Callable[[str], str]) -> E:
    """Change the text of an error in place, not the words behind it, and return the error."""
    words = getattr(error, _WORDS, "")
    setattr(error, _WORDS, "")
    reworded(error, translate(own_text(error)))
    return followed(error, words) if words else error


def reworded(error: E, text: str) -> E:
    """Give an error another text, in place, and return it."""
    setattr(error, _ATTRIBUTE, text)
    error.args = (text, *error.args[1:])
    return error


def own_text(error: BaseException) -> str:
    """Return an error's text without the words that were put in front of it."""
    text: str = getattr(error, _ATTRIBUTE, str(error))
    return text
