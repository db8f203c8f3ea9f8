"""A backend's options, read as its manifest declares them.

    values = parsed(options.options, OPTIONS)   # in a backend, with its `BackendInfo.options`

For backends too, which may import this module as they do the contract.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.types import Option

READ = (
    "provider",
    "device_id",
    "device_ids",
    "arithmetic",
    "rank_table_file",
    "input_shape",
    "dynamic_dims",
    "opt_dims",
    "model_cache_dir",
    "variable_weights_file",
    "variable_weights_list",
    "shareable_weight_pid_list",
    "shareable_weight_mem_handle",
)
"""Keys of a backend's section that the core reads, for every backend: how the model runs, on which
devices and as which rank, how exactly, for which shapes, where its compiled form is kept, which
weights may be exchanged, and with whom it shares them.
"""

RESERVED = ("model_cache_mode",)
"""Keys that the core will read. This version does not; it tells a user who sets one."""

CONSUMED = (*READ, *RESERVED)
"""Keys that never reach a backend in `CompileOptions.options`, and that it does not declare.

Their values come in fields of `CompileOptions`: `provider`, `device`, `shapes`, `profiles`, ...
"""

BOOLEANS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}

_SHORT = 3


def is_declared(key: str, names: Collection[str]) -> bool:
    """Return whether `names` has `key`; a name that ends in "*" stands for all that begin so."""
    return key in names or key.startswith(tuple([n[:-1] for n in names if n[-1:] == "*"]))


def nearest(word: str, words: Iterable[str], likeness: float = 0.6) -> str:
    """The one of `words` that a misspelt `word` most likely is, whatever its case; "" for none.

    Of three letters or fewer one that begins otherwise is another word, unless two have changed
    places: "tpu" is no "gpu", but "pcu" a "cpu".
    """
    import difflib  # rare

    lower = word.lower()
    by_lower = {
        each.lower(): each
        for each in words
        if len(lower) > _SHORT
        or lower[:1] == each[:1].lower()
        or sorted(lower) == sorted(each.lower())
    }
    near = difflib.get_close_matches(lower, by_lower, 1, likeness)
    return by_lower[near[0]] if near else ""


def refuse_unknown(given: Iterable[str], declared: Iterable[str]) -> None:
    """ValueError for a key of `given` that is not declared, with the nearest that is."""
    names = tuple(declared)
    for key in given:
        if not is_declared(key, names):
            near = nearest(key, names)
            hint = f"did you mean {near!r}? " if near else ""
            raise ValueError(f"unknown option {key!r}; {hint}known: {', '.join(names) or 'none'}")


def parsed(given: Mapping[str, str], declared: Mapping[str, Option]) -> dict[str, Any]:
    """Return the value of each declared option: of the given text, else of its default.

    A value has the option's type; a choice is spelt as it is declared. Without a text and a default
    it is None, and "" for an option of type str. Names that end in "*" are left out. Raises
    ValueError for a key that is not declared and for a text that is no value of its option.
    """
    refuse_unknown(given, declared)
    values = {}
    for name, option in declared.items():
        if name.endswith("*"):
            continue
        text = given.get(name, "").strip() or option.default
        value = value_of(option, text) if text else "" if option.type is str else None
        if text and value is None:
            raise ValueError(f"option {name!r}: expected {describe(option)}, got {text!r}")
        values[name] = value
    return values


def value_of(option: Option, text: str) -> Any:
    """Return the value that a user writes as `text`; None where the option has no such value."""
    if option.choices:
        text = next((each for each in option.choices if each.lower() == text.lower()), "")
        if not text:
            return None
    if option.type is bool:
        return BOOLEANS.get(text.lower())
    if option.type is str:
        return text
    try:
        number: float = int(text) if option.type is int else float(text)
    except ValueError:
        return None
    lowest = -math.inf if option.lowest is None else option.lowest
    highest = math.inf if option.highest is None else option.highest
    return number if lowest <= number <= highest and abs(number) < math.inf else None


def describe(option: Option) -> str:
    """Return the values that an option takes, for people: "int from 0 to 4", "one of a, b"."""
    if option.choices:
        return f"one of {', '.join(option.choices)}"
    if option.type is bool:
        return "true or false"
    limits = ""
    if option.lowest is not None:
        limits += f" from {option.lowest:.12g}"
    if option.highest is not None:
        limits += f" to {option.highest:.12g}"
    return option.type.__name__ + limits
