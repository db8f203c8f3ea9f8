"""Rewrites of models that ONNX Runtime takes as they are, for its faster kernels.

ONNX Runtime's optimiser fuses what is next to a convolution and keeps the convolutions' own layout
from one to the next. Some operators, and some ways to write one, end that; here they are written in
terms that do not. The option `rewrites` says which patterns are used; a model that is prepared
otherwise (prepare/), has functions of its own or external data in memory is left as it is.

    graph.py     a model as the patterns read it, and where they put their replacements
    apply.py     all patterns on one model
    choice.py    which form of a model is used; measured.py: how long both take, on the inputs of
                 sample.py
    inputs.py, leaky_relu.py, ...  one pattern each, by its name in the table

This file imports no onnx: most models have nothing to rewrite. A pattern that changes what it makes
needs a new version: compiled forms are kept by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.types import ModelSource

OFF, EXACT, ON = MODES = ("off", "exact", "on")


class Pattern(NamedTuple):
    """Facts of a pattern without a model.

    bound: the largest difference between a result and the one in float64, over the largest of the
    results; 0 for those that compute the same. is_exact: every bit is the same, of NaN, infinities,
    zeros and subnormal numbers too. operators: a model without one of them is not looked at; none
    for a pattern that is not about nodes. varies: a gain in some models, a loss in as many others.
    """

    name: str
    version: int
    bound: float
    operators: frozenset[str]
    is_exact: bool = False
    varies: bool = False


INPUTS = Pattern("inputs", 2, 1e-5, frozenset())
PATTERNS = (
    INPUTS,
    Pattern("conv1d", 1, 1e-5, frozenset({"Conv"}), varies=True),  # first: it takes what is between
    Pattern("leaky_relu", 2, 0.0, frozenset({"PRelu"}), is_exact=True),
    Pattern("prelu", 2, 0.0, frozenset({"PRelu"})),  # the sign of a zero may differ
    Pattern("hard_swish", 2, 1e-6, frozenset({"Clip"})),
    Pattern("gelu", 2, 1e-6, frozenset({"Erf"})),
    Pattern("affine", 2, 1e-5, frozenset({"Conv"})),  # after them: it takes factors of the others
    Pattern("scales", 1, 1e-6, frozenset({"Add", "Div", "Mul", "Sub"}), varies=True),
)


def patterns(mode: str) -> Sequence[Pattern]:
    """Return the patterns of a mode, in the order in which they are tried."""
    if mode == OFF:
        return ()
    return [pattern for pattern in PATTERNS if mode == ON or pattern.is_exact]


def key(mode: str) -> str:
    """Return the names and versions of a mode's patterns, for the key of compiled forms."""
    return key_of(patterns(mode))


def key_of(patterns: Sequence[Pattern]) -> str:
    """Return the names and versions of patterns."""
    return " ".join(f"{pattern.name}={pattern.version}" for pattern in patterns)


def candidates(source: ModelSource, mode: str) -> Sequence[Pattern]:
    """Return the patterns that may be in a model, judged without onnx."""
    graph = source.graph
    assert graph is not None, "the core reads every ONNX file before a backend does"
    chosen = patterns(mode)
    if not chosen:
        return ()
    operators = {node.op_type for node in graph.nodes}
    found = [pattern for pattern in chosen if pattern.operators & operators]
    if INPUTS in chosen:
        from engine_cpu.rewrites.inputs import lists_weights

        found += [INPUTS] if lists_weights(source) else []
    return found
