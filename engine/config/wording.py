"""MindSpore Lite's words in front of an error's text, and the text without them.

Its scripts match on "build_from_file failed! Error is ..."; the command line and the converter,
whose users called no such method, say the rest alone. Here is the one place that adds these words.
"""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound=Exception)

_ATTRIBUTE = "_text_of_its_own"


def prefixed(error: E, prefix: str) -> E:
    """Put `prefix` in front of the text of an error, which is changed in place and returned."""
    setattr(error, _ATTRIBUTE, own_text(error))
    error.args = (f"{prefix}{error}", *error.args[1:])
    return error


def reworded(error: E, text: str) -> E:
    """Give an error another text, in place, and return it."""
    setattr(error, _ATTRIBUTE, text)
    error.args = (text, *error.args[1:])
    return error


def own_text(error: BaseException) -> str:
    """Return an error's text without the words that were put in front of it."""
    text: str = getattr(error, _ATTRIBUTE, str(error))
    return text
