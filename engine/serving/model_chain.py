"""A chain of models: several of a bundle that one executor runs, one after the other.

Tensors go from model to model by the names that the bundle gives them, and stay on the device that
the models are on: only what the caller gives and gets is copied.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import DeadlineExceeded, ModelError
from engine.model.facts import is_built
from engine.model.model import Model, model_state
from engine.runtime import fitting
from engine.runtime.descriptions import description_for, meta_for
from engine.runtime.inputs import ThreadInputs
from engine.runtime.signature import Signature
from engine.runtime.thread_state import memory_of
from engine.tensor import Tensor
from engine.tensor.values import tensor_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.tensor import TensorMeta
    from engine.types import CancelToken, TensorSpec
    from engine.typing import Inputs


class Link(NamedTuple):
    """A model of a chain. inputs, outputs: the bundle's names for them, in the model's order."""

    model: Model
    inputs: Sequence[str]
    outputs: Sequence[str]


class Chain:
    """Models that run one after the other, to the caller one model. For any thread.

    Does not own the models: other chains may have them too.
    """

    def __init__(
        self, links: Sequence[Link], inputs: Sequence[str], outputs: Sequence[str]
    ) -> None:
        """Take the models, which are built, and the names of what goes in and comes out."""
        self._links = links
        taken: dict[str, TensorSpec] = {}
        given: dict[str, TensorSpec] = {}
        for link in links:
            taken.update(zip(link.inputs, link.model.inputs, strict=True))
            given.update(zip(link.outputs, link.model.outputs, strict=True))
        self._signature = Signature(
            [replace(taken[name], name=name) for name in inputs],
            [replace(given[name], name=name) for name in outputs],
        )
        known = set(inputs)
        self._unfed: str | None = None  # an input that nobody gives
        for link in links:
            if self._unfed is None:
                self._unfed = next((n for n in link.inputs if n not in known), None)
            known.update(link.outputs)
        self._devices = model_state(links[0].model).require_built().plan.devices
        self._inputs = threading.local()

    def predict(
        self,
        inputs: Inputs,
        outputs: list[Tensor] | None = None,
        *,
        timeout_s: float | None = None,
        cancel: CancelToken | None = None,
        priority: int = 0,
        request_id: str = "",
    ) -> list[Tensor]:
        """Run the models once; see Model.predict. timeout_s is for all of them together.

        Tensors that have the names of the inputs go by these, in any order, as in MindSpore Lite.
        """
        if self._unfed is not None:
            raise ModelError(
                f"predict failed! Input {self._unfed!r} of a model in the bundle is neither among "
                f"this executor's inputs ({', '.join(map(repr, self._signature.names))}) nor "
                "computed by an earlier model; convert the model again with a split that has it",
                self._links[0].model.model_path_,
            )
        values = fitting.values(self._signature, self._by_name(inputs), self._devices)
        asked = [Tensor() for _ in self._signature.outputs]
        if outputs:
            fitting.check_buffers(self._signature, memory_of(outputs), values)
            asked = outputs
        wanted = dict(zip((spec.name for spec in self._signature.outputs), asked, strict=True))
        fixed: dict[str, Tensor] = {}
        for spec, value in zip(self._signature.inputs, values, strict=True):
            fixed[spec.name] = tensor_of(value, description_for(spec))
        known = dict(fixed)
        start = time.monotonic()
        left = timeout_s
        for link in self._links:
            given = [known[name] for name in link.inputs]
            results = [wanted[n] if n in wanted else self._inside() for n in link.outputs]
            try:
                link.model.predict(
                    given,
                    results,
                    timeout_s=left,
                    cancel=cancel,
                    priority=priority,
                    request_id=request_id,
                )
            except DeadlineExceeded as error:
                assert timeout_s is not None
                raise DeadlineExceeded(
                    f"predict failed! {len(self._links)} models, one after the other, took longer "
                    f"than timeout_s, {timeout_s:g} s; give them more time, or leave timeout_s out",
                    float(timeout_s),
                ) from error
            if timeout_s is not None:
                left = max(timeout_s - (time.monotonic() - start), 1e-9)
            # The caller's values go before those that are computed under the same name.
            known.update(zip(link.outputs, results, strict=True))
            known.update(fixed)
        if not outputs:
            for name, tensor in wanted.items():
                tensor.name = name
        return outputs or asked

    def _inside(self) -> Tensor:
        """Return what is filled with a value that no caller sees."""
        return Tensor(device=str(self._devices[0])) if self._devices else Tensor()

    def _by_name(self, inputs: object) -> object:
        if not isinstance(inputs, list | tuple):
            return inputs
        named = {item.name: item for item in inputs if isinstance(item, Tensor)}
        is_named = len(named) == len(inputs) and named.keys() == set(self._signature.names)
        return named if is_named else inputs

    def get_inputs(self) -> list[Tensor]:
        """Return the calling thread's input tensors; see Model.get_inputs."""
        if not is_built(model_state(self._links[0].model)):
            return []
        if not hasattr(self._inputs, "given"):
            self._inputs.given = ThreadInputs()
        given: ThreadInputs = self._inputs.given
        return given.give(self._signature.inputs, self)

    def get_outputs(self) -> list[TensorMeta]:
        """Return descriptions of the outputs; axes of sizes that the models leave open are -1."""
        return [*map(meta_for, self._signature.outputs)]
