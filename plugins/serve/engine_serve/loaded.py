"""One version of a model that is loaded: its runner, its metadata and its requests."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.types import CancelToken, Placement, TensorSpec, ValueKind
from engine_serve.datatypes import NUMPY, name_of, of_array
from engine_serve.errors import RequestError
from engine_serve.latencies import Latencies
from engine_serve.request import Inference
from engine_serve.runners import Runner
from engine_serve.tensors import Array
from engine_serve.uploads import Upload

_SHORT_S = 600e-6  # of a run in another thread: two thirds of that is the way there and back
_LONG_S = 1e-3
_MOST_SHAPES = 1000


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """Name, the protocol's datatype and shape of an input or output; open axes are -1."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, spec: TensorSpec) -> TensorMetadata:
        """Return those of a model's input or output."""
        shape = tuple(size if isinstance(size, int) else -1 for size in spec.shape or ())
        return cls(spec.name, name_of(spec.dtype), shape)

    def __str__(self) -> str:
        return f"{self.datatype}{list(self.shape)}"


@dataclass(slots=True)
class Own:
    """Counts and seconds that the server itself adds to the runner's.

    refused: requests that never came to the runner. last: seconds since the epoch.
    """

    answered: int = 0
    refused: int = 0
    samples: int = 0
    input_s: float = 0.0
    output_s: float = 0.0
    last: float = 0.0
    latencies: Latencies = field(default_factory=Latencies)

    def add(self, samples: int, input_s: float, output_s: float) -> None:
        """Note a request that was answered."""
        self.answered += 1
        self.samples += samples
        self.input_s += input_s
        self.output_s += output_s
        self.last = time.time()


def placed(placement: Iterable[Placement]) -> list[dict[str, Any]]:
    """Return how many nodes each backend and device runs, the most first."""
    nodes = Counter((node.backend, node.device, node.provider) for node in placement)
    return [
        {"backend": backend, "device": device, "provider": provider, "nodes": count}
        for (backend, device, provider), count in nodes.most_common()
    ]


class LoadedModel:
    """A version that takes requests. All methods but `close` are for the event loop's thread.

    upload: its files, where a client has sent them.

    in_flight: requests that have it now; the repository counts them. labels: names of an output's
    classes. placement: as `placed` returns it. default_level, default_timeout_s, max_batch_size:
    the configuration's; 0 without. highest_level: the highest priority that clients may ask for.
    """

    in_flight = 0
    default_level = 0
    highest_level = 1
    default_timeout_s = 0.0
    max_batch_size = 0
    upload: Upload | None = None

    def __init__(self, name: str, version: str, path: Path, config: Any, runner: Runner) -> None:
        """Stand for a runner, which is this one's to close. Raises ModelError."""
        self.name, self.version, self.path, self.config = name, version, path, config
        self.runner = runner
        self.labels: dict[str, list[str]] = {}
        self.own = Own()
        inputs, outputs = runner.inputs, runner.outputs
        self.inputs = {spec.name: TensorMetadata.of(spec) for spec in inputs}
        self.outputs = {spec.name: TensorMetadata.of(spec) for spec in outputs}
        self.placement = placed(runner.placement)  # later, it might have to wait for a process
        form = path.suffix[1:]
        self.platform = f"{form}_{form}v1" if form else "engine"
        ranked = [spec for spec in inputs if spec.shape is not None]
        self._ranks = {spec.name: len(spec.shape or ()) for spec in ranked}
        for spec in (*inputs, *outputs):
            if spec.kind is not ValueKind.TENSOR:
                raise ModelError(
                    f"model {name!r}: {spec.name!r} is a {spec.kind}; the protocol carries tensors "
                    "only",
                    str(path),
                )
        self._may_be_short = runner.is_in_process and not runner.shares_runs
        self._short: set[object] = set()
        self._handed = 0  # requests that other threads run, or that wait for them

    def checked(self, inference: Inference) -> dict[str, Array]:
        """Return inputs of the model's names and types; the core checks their shapes.

        Raises RequestError.
        """
        inputs = inference.inputs
        for name, value in inputs.items():
            wanted = self.inputs.get(name)
            if wanted is None:
                raise RequestError(
                    f"model {self.name!r} has no input {name!r}; its inputs: "
                    f"{', '.join(self.inputs) or 'none'}",
                    name,
                )
            if value.ndim != self._ranks.get(name, value.ndim):  # the core would take another shape
                got = f"{of_array(value)}{list(value.shape)}"
                raise RequestError(f"input {name!r}: expected {wanted}, got {got}", name)
            dtype = NUMPY.get(wanted.datatype)
            if dtype is None or value.dtype == dtype:
                continue
            if wanted.datatype.startswith("FP8") and value.dtype == np.uint8:
                inputs[name] = value.view(dtype)  # as clients without the type send it
                continue
            got = f"{of_array(value)}{list(value.shape)}"
            raise RequestError(f"input {name!r}: expected {wanted}, got {got}", name)
        for name, spec in self.inputs.items():
            if name not in inputs:
                raise RequestError(f"input {name!r}: expected {spec}, got none", name)
        if self.max_batch_size and self.samples_of(inference) > self.max_batch_size:
            raise RequestError(
                f"model {self.name!r}: expected a batch of {self.max_batch_size} samples at most, "
                f"got {self.samples_of(inference)}"
            )
        for output in inference.outputs or ():
            if output.name not in self.outputs:
                raise RequestError(
                    f"model {self.name!r} has no output {output.name!r}; its outputs: "
                    f"{', '.join(self.outputs)}",
                    output.name,
                )
        return inputs

    async def infer(
        self, inference: Inference, inputs: dict[str, Array], cancel: CancelToken | None = None
    ) -> dict[str, Array]:
        """Return the outputs of a request, by name. Raises what the runner raises.

        inputs: as `checked` returns them. A run that is known to be short runs here, in the event
        loop: that takes less time than to hand it to another thread. A run that others may share
        does not, nor one beside others: it might wait for a slot, and the loop with it; nor one in
        another process, which may end.
        """
        timeout_s = inference.timeout_s or self.default_timeout_s or None
        is_plain = timeout_s is None and not inference.priority
        shapes = tuple([value.shape for value in inputs.values()])
        begin_s = perf_counter()
        if is_plain and not self._handed and shapes in self._short:
            results = self.runner.predict(inputs)
            if perf_counter() - begin_s > _LONG_S:
                self._short.discard(shapes)
        else:
            self._handed += 1
            try:
                results = await self.runner.predict_async(
                    inputs,
                    timeout_s=timeout_s,
                    cancel=cancel,
                    priority=inference.priority,
                    request_id=inference.id if inference.id.isprintable() else "",
                )
            except BaseException:
                self._short.clear()  # its run may go on, and hold its slot
                raise
            finally:
                self._handed -= 1
            took_s = perf_counter() - begin_s
            is_short = took_s < _SHORT_S and self._may_be_short
            if is_short and len(self._short) < _MOST_SHAPES:
                self._short.add(shapes)
        return {tensor.name: tensor.get_data_to_numpy() for tensor in results}

    def samples_of(self, inference: Inference) -> int:
        """Return how many samples a request has: the first axis of its first input."""
        value = next(iter(inference.inputs.values()), None)
        return value.shape[0] if value is not None and value.ndim else 1

    def close(self) -> None:
        """End; what waits runs first."""
        try:
            self.runner.close()
        finally:
            upload, self.upload = self.upload, None
            if upload is not None:
                upload.leave()
