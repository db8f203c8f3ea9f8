"""An ONNX graph as steps that JAX traces, and the nodes that are left to other backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx

from engine.errors import ModelError, one_line
from engine.types import DType
from engine_jax import elementwise, images, tensors  # noqa: F401 -- they fill the table
from engine_jax.registry import OPERATORS, refusal
from engine_jax.runtime import DTYPES


def known(value: Any) -> Any:
    """Return a value that does not depend on data: an array of numpy's; else None."""
    return value if isinstance(value, np.ndarray) else None


class Body:
    """Nodes in order: of the model, a branch, or an operator that others define."""

    def __init__(
        self, graph: Any, opsets: Mapping[str, int], attributes: Mapping[str, Any]
    ) -> None:
        self.inputs = tuple(getattr(each, "name", each) for each in graph.input)
        self.outputs = tuple(getattr(each, "name", each) for each in graph.output)
        nodes = enumerate(graph.node)
        self.steps = [Step(f"node {at}", node, opsets, attributes) for at, node in nodes]

    def place(self, knowns: set[str], types: Mapping[str, DType | None]) -> None:
        """Find out which steps can run, and what is known after them."""
        for step in self.steps:
            step.place(knowns, types)

    def run(self, values: dict[str, Any], check: Any) -> Sequence[Any]:
        """Trace all steps and return the outputs. check(flag, text): an operator refuses data."""
        for step in self.steps:
            try:
                given = [values[name] if name else None for name in step.inputs]
                results = step.run(given, values, check)
            except ModelError:
                raise
            except Exception as error:  # whatever JAX, numpy or an operator raises
                raise ModelError(f"{step.label}: {one_line(error)}") from error
            values.update(zip(step.outputs, results))
        return [values[name] for name in self.outputs]


class Step:
    """A node. `reason` says why it cannot run here; `is_known`: it does not depend on data."""

    def __init__(
        self, place: str, node: Any, opsets: Mapping[str, int], given: Mapping[str, Any]
    ) -> None:
        self.label = f"{place} {node.name!r} ({node.op_type})"
        self.inputs, self.outputs = tuple(node.input), tuple(node.output)
        self.is_known, self.is_branch = False, (node.domain, node.op_type) == ("", "If")
        self.bodies: list[Body] = []
        self.reason = f"operator {node.op_type!r} is not covered"
        self.operator = None if node.domain else OPERATORS.get(node.op_type)
        try:
            schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 0), node.domain)
        except onnx.defs.SchemaError:
            self.operator = None
            return
        self.attributes, self.since = _attributes(node, given), schema.since_version
        if self.operator is not None:
            counts = len(self.inputs), len(self.outputs)
            self.reason = refusal(self.operator, self.attributes, *counts, self.since)
        elif self.is_branch:
            branches = [self.attributes[name] for name in ("then_branch", "else_branch")]
            self.bodies = [Body(branch, opsets, given) for branch in branches]
            own = any(branch.initializer or branch.sparse_initializer for branch in branches)
            self.reason = "a branch with weights of its own is not covered" if own else ""
        elif versions := schema.function_opset_versions:
            older = [version for version in versions if version <= opsets[node.domain]]
            data = schema.get_function_with_opset_version(max(older, default=min(versions)))
            function = onnx.FunctionProto.FromString(data)
            inner = {entry.domain: entry.version for entry in function.opset_import}
            self.bodies = [Body(function, inner, _defaults(schema) | self.attributes)]
            self.reason = ""

    def place(self, knowns: set[str], types: Mapping[str, DType | None]) -> None:
        """Find out whether this step can run, from what is known before it, and add to that."""
        used = [not name or name in knowns for name in self.inputs]
        for name in (*self.inputs, *self.outputs):
            if name in types and types[name] not in DTYPES:
                self.reason = self.reason or f"{name!r} is a {types[name] or 'list, option or map'}"
        for at in () if self.operator is None else self.operator.known:
            if at < len(used) and not used[at]:
                self.reason = self.reason or f"input {at}, {self.inputs[at]!r}, depends on data"
        if self.is_branch and not used[0]:
            self.reason = self.reason or "which branch runs depends on data"
        for body in self.bodies:
            inner = {name for name, outer in zip(body.inputs, self.inputs) if outer in knowns}
            body.place({*knowns} if self.is_branch else inner, {})
            for step in body.steps:
                self.reason = self.reason or (step.reason and f"{step.label}: {step.reason}")
        of_shape = self.operator in (OPERATORS["Shape"], OPERATORS["Size"])
        self.is_known = not self.reason and not self.bodies and (all(used) or of_shape)
        knowns.update(self.outputs if self.is_known else ())

    def run(self, given: Sequence[Any], values: dict[str, Any], check: Any) -> Sequence[Any]:
        """Return the outputs for these inputs. values: by name, for branches."""
        if self.operator is not None:
            knowns = [known(value) for value in given]
            if any(a is None and b is not None for a, b in zip(knowns, given)):
                return self._compute(given, check)
            with jax.ensure_compile_time_eval():  # once, while the program is traced
                return [np.array(result) for result in self._compute(knowns, _refuse)]
        if not self.is_branch:
            return self.bodies[0].run(dict(zip(self.bodies[0].inputs, given)), check)
        return self.bodies[0 if given[0].item() else 1].run({**values}, check)

    def _compute(self, given: Sequence[Any], check: Any) -> Sequence[Any]:
        arguments = [
            known(value) if value is None or at in self.operator.known else jnp.asarray(value)
            for at, value in enumerate(given)
        ]
        own = {"since": self.since, "count": len(self.outputs), "check": check}
        own = {name: value for name, value in own.items() if name in self.operator.keywords}
        results = self.operator.run(*arguments, **self.attributes, **own)
        return results if isinstance(results, tuple) else (results,)


def _refuse(flag: Any, text: str) -> None:
    if flag:
        raise ValueError(text)


def _attributes(node: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's attributes; those of the function around it come from its caller."""
    found = {}
    for each in node.attribute:
        if each.ref_attr_name and each.ref_attr_name not in given:
            continue
        value = given[each.ref_attr_name] if each.ref_attr_name else _value(each)
        found[each.name] = value
    return found


def _value(attribute: Any) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _defaults(schema: Any) -> dict[str, Any]:
    found = {name: each.default_value for name, each in schema.attributes.items()}
    return {name: _value(default) for name, default in found.items() if default.name}
