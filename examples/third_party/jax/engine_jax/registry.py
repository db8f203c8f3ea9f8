"""The table of operators: what each covers is read from its implementation's signature.

    @operator("Trilu", known=[1])
    def trilu(x, k=ZERO, /, *, upper=1): ...

Parameters before `/` are the node's inputs; those with a default may be absent, those in `known`
must be known when the model is traced. The others are the attributes that are covered, and three
things that are not the node's: `since` (its schema's version), `count` (of its outputs) and `check`
(reports data that the operator refuses). A node that needs more than that is left to others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

OPERATORS: dict[str, Any] = {}
NEWEST = 28
"""The last version of ONNX's operators that was looked at; a later schema may say more."""


def add(
    name: str, run: Callable[..., Any], since: int = 1, known: Iterable[int] = (), outputs: int = 1,
    **only: Any,
) -> None:  # fmt: skip
    """Put an implementation into the table. only: the values of an attribute that are covered."""
    given = inspect.signature(run).parameters.values()
    keywords = {each.name for each in given if each.kind is each.KEYWORD_ONLY}
    is_variadic = any(each.kind is each.VAR_POSITIONAL for each in given)
    inputs = 1 << 30 if is_variadic else len(given) - len(keywords)
    OPERATORS[name] = SimpleNamespace(
        run=run, since=since, known=frozenset(known), keywords=keywords, only=only,
        inputs=inputs, outputs=outputs,
    )  # fmt: skip


def operator(name: str, **covered: Any) -> Callable[..., Any]:
    """Put the function that follows into the table, as `add` does."""
    return lambda run: add(name, run, **covered) or run


def family(shape: Callable[..., Any], table: dict[str, Any], **covered: Any) -> None:
    """Put operators into the table that differ in the function which `shape` gets first."""
    for name, run in table.items():
        add(name, partial(shape, run), **covered)


def refusal(covered: Any, attributes: dict[str, Any], inputs: int, outputs: int, since: int) -> str:
    """Return why a node is not covered; "" for one that is."""
    if not covered.since <= since <= NEWEST:
        return f"version {since} of the operator is not covered, {covered.since} to {NEWEST} are"
    for name, value in attributes.items():
        if name not in covered.keywords or value not in covered.only.get(name, (value,)):
            return f"attribute {name}={value!r} is not covered"
    if inputs > covered.inputs or outputs > covered.outputs:
        return f"{inputs} inputs and {outputs} outputs are not covered"
    return ""
