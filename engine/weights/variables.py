"""The variable weights of a model: which they are, and what an update of them says.

The way of new values to what runs is not known here: see `engine.model.update` and
`engine.plan.weights`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from engine.config.variable_weights import Declaration, UpdateKind, UpdateMode
from engine.errors import InputError, ModelError
from engine.formats.opened import Array, OpenedSource
from engine.plan.weights import check_weight, unknown_weight
from engine.tensor import Tensor
from engine.tensor.values import value_of
from engine.types import Device, DeviceBuffer, DType, TensorSpec, Value
from engine.wings import wing

Update: TypeAlias = "list[list[Tensor]] | Mapping[str, Any]"
"""MindSpore Lite's form, tensors with names or in the declared order; or arrays by name."""

_DELTA = "_add_param"  # how MindSpore Lite's GE backend calls what is added to a weight


def check_form(weights: object) -> None:
    """Raise TypeError, in MindSpore Lite's words, for what is no update of any model."""
    if isinstance(weights, Mapping):
        for name in weights:
            if not isinstance(name, str):
                raise TypeError(f"weights key must be str, but got {type(name)}.")
        return
    if not isinstance(weights, list):
        raise TypeError(f"weights must be list, but got {type(weights)}. Or a dict by name")
    for i, weight in enumerate(weights):
        if not isinstance(weight, list):
            raise TypeError(f"weight must be list, but got {type(weight)}.")
        for j, element in enumerate(weight):
            if not isinstance(element, Tensor):
                raise TypeError(
                    f"weights element must be Tensor, but got {type(element)} as index {i}{j}."
                )


class VariableWeights:
    """The weights of one model that its user has declared variable.

    specs: name, dtype and shape of each, in the order of the declaration.
    """

    def __init__(self, source: OpenedSource, declaration: Declaration) -> None:
        """Take over what was declared. source: the model as it was opened with these names.

        Raises InputError for weights to which nothing can be added, where updates are to be added.
        """
        slots = source.variables
        self.mode = declaration.mode
        self.kind = declaration.kind
        self.declared = declaration.names
        self.specs = tuple(TensorSpec(slot.name, slot.dtype, slot.shape) for slot in slots)
        self._specs = {spec.name: spec for spec in self.specs}
        # A weight's own name comes before what another is called.
        self._names = {name: slot.name for slot in slots for name in slot.declared_as}
        for own, name in declaration.own_names.items():
            self._names.setdefault(own, self._names[name])
        # Of the names in the declaration alone: a weight's own name may look like an adapter's.
        self._nodes: dict[str, str] = {}
        for name, own in self._names.items():
            if name not in self._specs:
                self._nodes |= {name: own}
                # Two weights of one node, as trainers see it: the first name that was declared.
                self._nodes.setdefault(wing("adapters_node")(name) or name, own)
        graph = source.graph
        self._constants = (
            frozenset(item.name for item in graph.parameters) if graph else frozenset()
        )
        self._names |= {slot.name: slot.name for slot in slots}
        is_added = self.kind is UpdateKind.ADD
        for spec in self.specs if is_added else ():
            if spec.dtype in (DType.BOOL, DType.STRING) or 0 < spec.dtype.bits < 8:
                raise InputError(
                    f"{source.name}: variable weight {spec.name!r} is {spec}, to which nothing can "
                    "be added; set [common_context] variable_weights_update = replace",
                    spec.name,
                )
        keeps = is_added and self.mode is not UpdateMode.REBUILD
        self._loaded = {slot.name: slot.initial for slot in slots} if keeps else {}

    def read(self, weights: Update, devices: Sequence[Device]) -> dict[str, Value]:
        """Return the new values by weight, checked: names, dtypes, shapes.

        weights: has passed `check_form`. devices: those whose memory the model takes; what is on
            another comes as an array. Nothing is copied where it need not be.
        Raises InputError naming the weight.
        """
        found: dict[str, Value] = {}
        for name, item in self._named(weights):
            if name in found:
                raise InputError(f"weight {name!r} comes twice in one update", name)
            spec = self._specs[name]
            value = _value_of(item, spec, devices)
            check_weight(value, spec)
            found[name] = value
        if not found:
            raise InputError(
                "Common error code. The update has no weights in it; declared: "
                f"{', '.join(map(repr, self._specs))}"
            )
        missing = [name for name in self._specs if name not in found]
        if missing and self.kind is UpdateKind.ADD:
            raise InputError(
                "can not find init data name in user update weight tensors. An update that adds to "
                f"the weights as loaded has all that were declared, and {missing[0]!r} is missing",
                missing[0],
            )
        return found

    def resulting(
        self, update: Mapping[str, Value], loaded: Mapping[str, Array] | None = None
    ) -> dict[str, Value]:
        """Return the weights' new values: the update's own, or its sums with the weights as loaded.

        loaded: those, where they are at hand; else they were kept.
        """
        if self.kind is UpdateKind.REPLACE:
            return dict(update)
        base = self._loaded if loaded is None else loaded
        with np.errstate(over="ignore", invalid="ignore"):  # as the sum of any two floats
            return {name: np.asarray(base[name] + on_host(delta)) for name, delta in update.items()}

    def _named(self, weights: Update) -> Iterator[tuple[str, Any]]:
        """Yield each tensor of an update with the name of the weight that it is for."""
        if isinstance(weights, Mapping):
            for name, item in weights.items():
                yield self._meant(name), item
            return
        tensors = [tensor for weight in weights for tensor in weight]
        unnamed = [tensor for tensor in tensors if not tensor.name]
        if not unnamed:
            for tensor in tensors:
                yield self._meant(tensor.name), tensor
            return
        if len(unnamed) < len(tensors):
            raise InputError(
                f"{len(unnamed)} of the {len(tensors)} tensors have no name; name all, or none to "
                "give every declared weight in the order of the declaration"
            )
        if len(tensors) != len(self.specs):
            listed = ", ".join(f"{spec.name!r} {spec}" for spec in self.specs)
            raise InputError(
                f"expected {len(self.specs)} tensors without a name, one a declared weight in the "
                f"order of the declaration ({listed}), got {len(tensors)}; name those that you give"
            )
        yield from zip(self._specs, tensors, strict=True)

    def _meant(self, name: str) -> str:
        own = self._names.get(name)
        if own is not None:
            return own
        if name not in self._constants:  # those are weights that were not declared
            # Adapters have several tensors for a node.
            own = self._nodes.get(wing("adapters_node")(name))
            if own is not None:
                return own
        own = self._names.get(name.removesuffix(_DELTA))
        if own is None:
            raise unknown_weight(name, self._names)
        if self.kind is not UpdateKind.ADD:
            raise InputError(
                f"{name!r} is the name of what is to be added to weight {own!r}; set "
                "[common_context] variable_weights_update = add for that, or name the weight",
                name,
            )
        return own


def copied(values: Mapping[str, Value]) -> dict[str, Array]:
    """Return tensors as arrays of their own, to be kept."""
    return {name: np.array(on_host(value), order="C") for name, value in values.items()}


def sendable(weights: Update, specs: Sequence[TensorSpec]) -> Update:
    """Return a copy of an update that another process can be sent: in host memory, and its own.

    specs: of the declared weights. Raises InputError for what does not give its memory.
    """
    if isinstance(weights, Mapping):
        by_name = {spec.name: spec for spec in specs}
        return {
            name: _own(item, by_name.get(name) or replace(specs[0], name=name))
            for name, item in weights.items()
        }
    return [[_own(tensor, specs[0]) for tensor in weight] for weight in weights]


def _own(item: Any, spec: TensorSpec) -> Any:
    """Return a copy of a tensor; what is none, or has no data, as it is, to be refused there."""
    if (isinstance(item, Tensor) and value_of(item) is None) or np.ma.is_masked(item):
        return item
    value = _value_of(item, spec, ())
    if not isinstance(value, np.ndarray | DeviceBuffer):
        return item
    array = np.array(on_host(value), order="C")
    if not isinstance(item, Tensor):
        return array
    tensor = Tensor(array)
    tensor.name = item.name
    return tensor


def on_host(value: Value) -> Array:
    """Return a tensor as an array."""
    if isinstance(value, DeviceBuffer):
        from engine.tensor.memory import to_host

        value = to_host(value)
    assert isinstance(value, np.ndarray)
    return value


def _value_of(item: Any, spec: TensorSpec, devices: Sequence[Device]) -> Value:
    """Return what a user passes for a weight as a value; what is none as it is."""
    if isinstance(item, Tensor):
        item = value_of(item)
        if item is None:
            raise InputError(
                f"weight {spec.name!r}: the tensor has no data; call set_data_from_numpy with "
                f"{spec}",
                spec.name,
            )
    elif not isinstance(item, np.ndarray | DeviceBuffer):
        from engine.runtime.foreign import take

        taken = take(item, spec, devices[0] if devices else None, "weight")
        item = item if taken is None else taken
    if isinstance(item, DeviceBuffer) and item.device not in devices:
        return on_host(item)
    value: Value = item
    return value


def check_rebuildable(source: OpenedSource, can_be_had_again: bool) -> None:
    """Raise ModelError for a model that cannot be built anew for each update."""
    why = ""
    if source.state:
        why = f"it has state ({source.state[0].name!r}), which would begin anew"
    elif not can_be_had_again:
        why = "it was in memory or is encrypted, and is not kept"
    if why:
        raise ModelError(
            f"{source.name}: variable_weights_mode is rebuild, but {why}; set [common_context] "
            "variable_weights_mode = swap",
            source.name,
        )
