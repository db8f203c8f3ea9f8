"""Builders of random graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper

WIDTH = 12
OPSET = 20
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
value_info = helper.make_tensor_value_info


@dataclass
class Builder:
    """A graph while it is made: b.Add("x", "y") adds a node and returns its first output."""

    chance: np.random.Generator
    nodes: list[NodeProto] = field(default_factory=list)
    tensors: list[TensorProto] = field(default_factory=list)
    functions: list[FunctionProto] = field(default_factory=list)
    count: int = 0

    def __getattr__(self, kind: str) -> Callable[..., str]:
        return partial(self.add, kind)

    def add(self, kind: str, *inputs: str, **given: Any) -> str:
        """Add a node and return its first output."""
        return self.add_all(kind, *inputs, **given)[0]

    def add_all(
        self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **given: Any
    ) -> list[str]:
        """Add a node and return its outputs."""
        names = [self.name(kind.lower()) for _ in range(outputs)]
        label = f"{kind}_{self.count}"
        self.nodes.append(helper.make_node(kind, inputs, names, label, domain=domain, **given))
        return names

    def name(self, stem: str) -> str:
        """Return a new name."""
        self.count += 1
        return f"{stem}{self.count}"

    def pick(self, *choices: Any) -> Any:
        """Return one of these values."""
        return self.chance.choice(choices).item()

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Return a constant: an initializer, a Constant node, or a value behind Identity."""
        array = np.asarray(value, dtype)
        form = self.chance.integers(3)
        if form == 0:
            name = self.name("c")
            self.tensors.append(numpy_helper.from_array(array, name))
            return name
        made = self.Constant(value=numpy_helper.from_array(array))
        return made if form == 1 else self.Identity(made)

    def scalar(self, value: int) -> str:
        """Return a constant scalar of int64."""
        return self.constant(value, np.int64)

    def ints(self, *values: int) -> str:
        """Return a constant vector of int64."""
        return self.constant(values, np.int64)

    def weight(self, *shape: int) -> str:
        """Return a weight, sometimes one that is stored as int8."""
        array = self.chance.standard_normal(shape).astype(np.float32) / 3
        if self.chance.integers(4):
            return self.constant(array)
        scale = np.float32(np.abs(array).max() / 127)
        stored = np.round(array / scale).astype(np.int8)
        return self.DequantizeLinear(self.constant(stored, np.int8), self.constant(scale))

    def rows(self, value: str) -> str:
        """Return how many rows there are, as int64 [1]."""
        shape = self.Shape(value)
        if self.chance.integers(2):
            return self.Gather(shape, self.ints(0))
        return self.Slice(shape, self.ints(0), self.ints(1))

    def shaped(self, value: str, *dims: int) -> str:
        """Reshape rows of 12 to [n, *dims]; the shape is a constant or is computed."""
        form = self.chance.integers(3)
        if form < 2:
            return self.Reshape(value, self.ints(0 if form else -1, *dims))
        parts = [self.rows(value), *(self.ints(dim) for dim in dims)]
        return self.Reshape(value, self.Concat(*parts, axis=0))

    def flat(self, value: str) -> str:
        """Bring [n, ...] back to [n, 12]."""
        if self.chance.integers(2):
            return self.Flatten(value, axis=1)
        return self.Reshape(value, self.ints(-1, WIDTH))

    def turned(self, value: str, *perm: int) -> str:
        """Transpose; two axes change places where no order is given."""
        return self.Transpose(value, perm=perm or (1, 0))

    def line(self, value: str) -> str:
        """Return rows as one sample of 12 channels, [1, 12, n]."""
        return self.Unsqueeze(self.turned(value), self.ints(0))

    def unlined(self, value: str) -> str:
        """Return the rows of such a sample."""
        return self.turned(self.Squeeze(value, self.ints(0)))

    def inner(self) -> Builder:
        """Return a builder of a body or a function, with names of its own."""
        return Builder(self.chance, functions=self.functions, count=self.count + 1000)

    def function(self, make: Step, value: str) -> str:
        """Put a step into a function of the model, and call it."""
        inner = self.inner()
        result = make(inner, "argument")
        held = [
            helper.make_node("Constant", [], [tensor.name], value=tensor)
            for tensor in inner.tensors
        ]
        name = self.name("Step")
        nodes = [*held, *inner.nodes]
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("test.steps", 1)]
        self.functions.append(
            helper.make_function("test.steps", name, ["argument"], [result], nodes, opsets)
        )
        self.count = inner.count
        return self.add(name, value, domain="test.steps")

    def body(
        self, make: Callable[[Builder], list[str]], inputs: list[Any], kinds: list[int], name: str
    ) -> Any:
        """Return a graph for a body. kinds: the element types of its results."""
        inner = self.inner()
        results = [inner.Identity(result) for result in make(inner)]
        self.count = inner.count
        outputs = [value_info(result, kind, None) for result, kind in zip(results, kinds)]
        return helper.make_graph(inner.nodes, name, inputs, outputs, inner.tensors)

    def branch(self, make: Callable[[Builder], str], stem: str = "branch") -> Any:
        """Return a branch of an If."""
        return self.body(lambda inner: [make(inner)], [], [FLOAT], self.name(stem))

    def loop(self, value: str, turns: str | int, step: Step) -> str:
        """Loop over a step. turns: how many, or the name of the tensor that says so."""
        turn, going, state = self.name("turn"), self.name("going"), self.name("state")
        inputs = [
            value_info(turn, INT64, []), value_info(going, BOOL, []), value_info(state, FLOAT, None)
        ]  # fmt: skip
        graph = self.body(
            lambda inner: [inner.Identity(going), step(inner, state)],
            inputs, [BOOL, FLOAT], self.name("body"),
        )  # fmt: skip
        count = turns if isinstance(turns, str) else self.scalar(turns)
        return self.Loop(count, self.constant(True, np.bool_), value, body=graph)

    def summing(self, shape: list[Any], is_tanh: bool = False) -> Any:
        """Return the body of a Scan: a sum, which each turn carries to the next and gives."""
        state, part = self.name("state"), self.name("part")

        def inside(inner: Builder) -> list[str]:
            total = inner.Add(state, inner.Tanh(part) if is_tanh else part)
            return [total, total]

        inputs = [value_info(name, FLOAT, shape) for name in (state, part)]
        return self.body(inside, inputs, [FLOAT, FLOAT], self.name("body"))


Step = Callable[[Builder, str], str]
