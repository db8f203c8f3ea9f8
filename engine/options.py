"""A backend's options, told from misspelt ones by what its manifest declares.

    refuse_unknown(options.options, OPTIONS)   # in a backend, with its `BackendInfo.options`

For backends too, which may import this module as they do the contract.
"""

from __future__ import annotations

from collections.abc import Iterable

READ = (
    "provider",
    "device_id",
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
device and as which rank, for which shapes, where its compiled form is kept, which weights may be
exchanged, and with whom it shares them.
"""

RESERVED = ("model_cache_mode",)
"""Keys that the core will read. This version does not; it tells a user who sets one."""

CONSUMED = (*READ, *RESERVED)
"""Keys that never reach a backend in `CompileOptions.options`, and that it does not declare.

What they say comes in fields of `CompileOptions`: `provider`, `device`, `shapes`, `profiles`, ...
"""


_SHORT = 3


def is_declared(key: str, names: Iterable[str]) -> bool:
    """Return whether `names` has `key`; a name that ends in "*" stands for all that begin so."""
    return any(key == name or (name.endswith("*") and key.startswith(name[:-1])) for name in names)


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
