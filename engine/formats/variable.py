"""Weights that are declared variable: which ones the user's names mean.

A name is a weight's own, or that of a node (a convolution or a matrix product) whose constant
weight is meant, or that of an adapter's tensor for such a node: MindSpore Lite's ways. Such weights
become inputs of the graph before anything is folded, so that a new value reaches every node that
reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from engine.errors import InputError
from engine.options import nearest
from engine.wings import wing


def declared_weights(
    wanted: Iterable[str], weights: Iterable[str], readers: Mapping[str, Sequence[str]], model: str
) -> dict[str, list[str]]:
    """Return the weights that the user's names mean, in the order of the names, each with these.

    weights: of the model, by name. readers: by the name of a node, the constant weights that it
    reads; a weight of the same name comes first. model: what errors call it.
    Raises InputError for a name that means no weight, or more than one.
    """
    known = dict.fromkeys(weights)
    meant: dict[str, list[str]] = {}
    for name in dict.fromkeys(wanted):
        if name in known:
            meant.setdefault(name, []).append(name)
            continue
        choices = readers.get(name)
        if choices is None:
            choices = readers.get(wing("adapters_node")(name))
        if choices is None:
            # A conversion that stores a weight in another type calls it NAME.float16.
            longer = (weight for weight in known if weight.startswith(f"{name}."))
            near = next(longer, None) or nearest(name, (*known, *readers))
            hint = f"; did you mean {near!r}?" if near else ""
            raise InputError(
                f"{model}: variable weight {name!r} is neither a weight nor a node with one{hint} "
                "(engine inspect --parameters lists the weights)",
                name,
            )
        if len(choices) != 1:
            listed = ", ".join(map(repr, choices[:6])) or "none"
            raise InputError(
                f"{model}: variable weight {name!r} is a node, and it should have one constant "
                f"weight with 2 or 4 axes, got {listed}; name the weight itself",
                name,
            )
        meant.setdefault(choices[0], []).append(name)
    return meant
