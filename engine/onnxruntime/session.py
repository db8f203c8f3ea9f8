"""InferenceSession: a Model, as scripts for onnxruntime use one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.errors import EngineError
from engine.onnxruntime.building import Opened, opened
from engine.onnxruntime.errors import translated
from engine.onnxruntime.options import SessionOptions

_PRINTED = "*************** EP Error ***************\n"


class InferenceSession:
    """A model that is built, and runs.

    path_or_bytes: the model's file, or the model. providers: names, or names with options, in the
    order in which they are to run nodes; without them, all that are there.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        self._model: str | bytes
        self._model_path: str | None
        if isinstance(path_or_bytes, str | os.PathLike):
            self._model = self._model_path = os.fspath(path_or_bytes)
        elif isinstance(path_or_bytes, bytes):
            self._model, self._model_path = path_or_bytes, None
        else:
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        self._given_options = sess_options
        self._further = kwargs
        self._enable_fallback = int(kwargs.get("enable_fallback", 1)) == 1
        self._open(providers, provider_options)

    def _open(self, providers: Any, provider_options: Any) -> None:
        """Build the model for these providers."""
        options = SessionOptions() if self._given_options is None else self._given_options
        self._opened: Opened = opened(
            self._model, options, providers, provider_options, self._further
        )
        self._take()

    def _take(self) -> None:
        """Take from what was built what `run` looks at."""
        built = self._opened
        self._state = built.state
        self._names = [arg.name for arg in built.inputs]
        self._count = len(self._names) if built.is_plain else -1
        self._outputs = [arg.name for arg in built.outputs]
        self._places = {name: place for place, name in enumerate(self._outputs)}

    # ---------------------------------------------------------------------------------- running

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Run the model once, and return the outputs of these names; of none, all of them."""
        # The way of arrays that are as last time: Model.predict, without its Tensors.
        if run_options is not None or len(input_feed) != self._count:
            return self._run_otherwise(output_names, input_feed, run_options)
        try:
            thread = self._state.threads.state
            lease, idle = thread.lease, thread.idle
            values = []
            for name, (dtype, shape) in zip(self._names, thread.expected):
                array = input_feed[name]
                if (
                    type(array) is not np.ndarray
                    or array.dtype is not dtype
                    or array.shape != shape
                    or not array.flags.carray
                ):
                    return self._run_otherwise(output_names, input_feed, run_options)
                values.append(array)
            places = [self._places[name] for name in output_names] if output_names else None
            del idle[lease]  # take the context that this thread used last
        except (AttributeError, KeyError):
            return self._run_otherwise(output_names, input_feed, run_options)
        try:
            try:
                results = thread.run(lease.context, values, None, None)
            finally:
                idle[lease] = None
                if thread.pool.is_closed:
                    thread.pool.settle()
        except BaseException as error:
            raise self._failure(thread, error, lease) from None
        if places is None:
            return results  # type: ignore[no-any-return]
        return [results[place] for place in places]

    def _failure(self, thread: Any, error: BaseException, lease: Any) -> BaseException:
        """Return what a program sees where a run raised `error`."""
        try:
            thread.fail(error, None, lease)
        except EngineError as failed:
            return translated(failed)
        except BaseException as failed:
            return failed
        raise AssertionError("`fail` raises")

    def _run_otherwise(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any
    ) -> list[Any]:
        """Run what does not come as last time."""
        built = self._opened
        missing = [
            arg.name
            for arg in built.inputs
            if arg.name not in input_feed and not arg.type.startswith("optional")
        ]
        if missing:
            raise ValueError(
                f"Required inputs ({missing}) are missing from input feed ({[*input_feed]})."
            )
        return built.run(list(output_names or self._outputs), input_feed, run_options)

    # ------------------------------------------------------------------------------------ facts

    def get_inputs(self) -> list[Any]:
        """Return the inputs, in the model's order."""
        return self._opened.inputs

    def get_outputs(self) -> list[Any]:
        """Return the outputs, in the model's order."""
        return self._opened.outputs

    def get_overridable_initializers(self) -> list[Any]:
        """Return the initializers for which a run may give another value."""
        return self._opened.overridable

    def get_modelmeta(self) -> Any:
        """Return the header of the model's file."""
        return self._opened.metadata

    def get_session_options(self) -> Any:
        """Return the options that the session was made with."""
        return self._opened.options

    def get_providers(self) -> list[str]:
        """Return the providers that run the model, in their order."""
        return [*self._opened.providers]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of each provider."""
        return self._opened.providers

    def set_providers(
        self, providers: Any = None, provider_options: Sequence[dict[Any, Any]] | None = None
    ) -> None:
        """Build the model for other providers."""
        self._open(providers, provider_options)
