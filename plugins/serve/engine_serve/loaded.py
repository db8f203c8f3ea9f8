"""One version of a model that is loaded: its runner, its metadata and its requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import engine
from engine.types import CancelToken, TensorSpec
from engine_serve.datatypes import NUMPY, name_of, of_array
from engine_serve.errors import RequestError
from engine_serve.request import Inference
from engine_serve.tensors import Array

_SHORT_S = 300e-6  # a run of less holds up the event loop no longer than handing it over would
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

    def add(self, samples: int, input_s: float, output_s: float) -> None:
        """Note a request that was answered."""
        self.answered += 1
        self.samples += samples
        self.input_s += input_s
        self.output_s += output_s
        self.last = time.time()


class LoadedModel:
    """A version that takes requests. All methods but `close` are for the event loop's thread.

    in_flight: requests that have it now; the repository counts them. labels: names of an output's
    classes. default_level, default_timeout_s, max_batch_size: the configuration's; 0 without.
    """

    in_flight = 0
    default_level = 0
    default_timeout_s = 0.0
    max_batch_size = 0

    def __init__(self, name: str, version: str, path: Path, config: Any, **options: Any) -> None:
        """Build the model. options: those of ModelParallelRunner.build_from_file."""
        self.name, self.version, self.path, self.config = name, version, path, config
        self.labels: dict[str, list[str]] = {}
        self.own = Own()
        facts = engine.inspect(str(path))
        self.inputs = {spec.name: TensorMetadata.of(spec) for spec in facts.inputs}
        self.outputs = {spec.name: TensorMetadata.of(spec) for spec in facts.outputs}
        self.platform = f"{facts.format}_{facts.format}v1" if facts.format else "engine"
        self.runner = engine.ModelParallelRunner()
        self.runner.build_from_file(str(path), when_full="raise", **options)
        self._is_sharing = not self.runner.statistics().batching.startswith("off")
        self._short: set[object] = set()

    async def infer(
        self, inference: Inference, cancel: CancelToken | None = None
    ) -> dict[str, Array]:
        """Return the outputs of a request, by name. Raises what the runner raises.

        A run that is known to be short runs here, in the event loop: that takes less time than
        to hand it to another thread. So does no run that others may share.
        """
        inputs = self._checked(inference.inputs)
        shapes = tuple([value.shape for value in inputs.values()])
        is_plain = inference.timeout_s is None and not inference.priority
        begin_s = time.perf_counter()
        if is_plain and shapes in self._short:
            results = self.runner.predict(inputs)
            if time.perf_counter() - begin_s > _LONG_S:
                self._short.discard(shapes)
        else:
            results = await self.runner.predict_async(
                inputs,
                timeout_s=inference.timeout_s,
                cancel=cancel,
                priority=inference.priority,
                request_id=inference.id[:128] if inference.id.isprintable() else "",
            )
            if not self._is_sharing and time.perf_counter() - begin_s < 2 * _SHORT_S:
                if len(self._short) < _MOST_SHAPES:
                    self._short.add(shapes)
        return {tensor.name: tensor.get_data_to_numpy() for tensor in results}

    def _checked(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Return inputs of the model's names and types; the core checks their shapes."""
        for name, value in inputs.items():
            wanted = self.inputs.get(name)
            if wanted is None:
                raise RequestError(
                    f"model {self.name!r} has no input {name!r}; its inputs: "
                    f"{', '.join(self.inputs) or 'none'}",
                    name,
                )
            dtype = NUMPY.get(wanted.datatype)
            if value.dtype == dtype:
                continue
            if wanted.datatype.startswith("FP8") and value.dtype == np.uint8:
                inputs[name] = value.view(dtype)  # as clients without the type send it
                continue
            got = f"{of_array(value)}{list(value.shape)}"
            raise RequestError(f"input {name!r}: expected {wanted}, got {got}", name)
        if len(inputs) < len(self.inputs):
            missing = [name for name in self.inputs if name not in inputs]
            raise RequestError(f"input {missing[0]!r}: expected {self.inputs[missing[0]]}, "
                               "got none", missing[0])  # fmt: skip
        return inputs

    def asked(self, names: Sequence[str]) -> None:
        """Raise RequestError for an output that the model does not have."""
        for name in names:
            if name not in self.outputs:
                raise RequestError(
                    f"model {self.name!r} has no output {name!r}; its outputs: "
                    f"{', '.join(self.outputs)}",
                    name,
                )

    def samples_of(self, inference: Inference) -> int:
        """Return how many samples a request has: the first axis of its first input."""
        value = next(iter(inference.inputs.values()), None)
        return value.shape[0] if value is not None and value.ndim else 1

    def close(self) -> None:
        """End; what waits runs first."""
        self.runner.close()
