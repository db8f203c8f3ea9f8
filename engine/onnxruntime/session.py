"""InferenceSession: a Model, as scripts for onnxruntime use one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy import ndarray

from engine.errors import EngineError
from engine.onnxruntime.binding import IOBinding, TensorBinding
from engine.onnxruntime.building import opened, require_unchanged
from engine.onnxruntime.errors import translated
from engine.onnxruntime.options import SessionOptions
from engine.onnxruntime.providers import CPU
from engine.onnxruntime.values import as_ort_value, given, renamed
from engine.tensor.values import PLAIN

_STARS = "*" * 15


class InferenceSession:
    """A model that is built, and runs.

    path_or_bytes: the model's file, or the model. providers: names, or names with options, in the
    order in which they are to run nodes; without them, those of the installed onnxruntime.
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
        try:
            self._open(providers, provider_options)
        except (ValueError, RuntimeError) as error:
            if not self._enable_fallback:
                raise
            print(f"{_STARS} EP Error {_STARS}\nEP Error {error} when using {providers}")
            print(f"Falling back to {[CPU]} and retrying.\n{_STARS}{_STARS}")
            try:
                self._open([CPU], None)
            except Exception as second:
                raise second from error

    def _open(self, providers: Any, provider_options: Any, files: Any = None) -> None:
        """Build the model for these providers. files: that it must be made of."""
        self._asked = providers, provider_options
        options = self._given_options
        if _reads_config(self._further):
            from engine.onnxruntime.configured import configured  # rare

            options = configured(self._model)
        elif options is None:
            options = SessionOptions()
        built = opened(self._model, options, providers, provider_options, self._further)
        if files:
            require_unchanged(files, built.files)
        self._opened: Any = built
        self._take()

    def _take(self) -> None:
        """Take from what was built what `run` looks at."""
        built = self._opened
        self._state: Any = built.state
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
                    type(array) is not ndarray
                    or array.dtype is not dtype
                    or array.shape != shape
                    or not ((flags := array.flags).carray or flags.num & PLAIN == PLAIN)
                ):
                    return self._run_otherwise(output_names, input_feed, run_options)
                values.append(array)
            places = None
            if output_names:
                if type(output_names) is not list and not isinstance(output_names, tuple):
                    return self._run_otherwise(output_names, input_feed, run_options)
                places = [self._places[name] for name in output_names]
            del idle[lease]  # take the context that this thread used last
        except (AttributeError, KeyError):
            lease = None
        if lease is None:
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
        self._reopen_after_fork()
        self._require_inputs(input_feed)
        names = output_names or self._outputs
        return self._opened.run(names, input_feed, run_options)  # type: ignore[no-any-return]

    def _require_inputs(self, input_feed: Mapping[str, Any]) -> None:
        missing = [
            arg.name
            for arg in self._opened.inputs
            if arg.name not in input_feed and not arg.type.startswith("optional")
        ]
        if missing:
            raise ValueError(
                f"Required inputs ({missing}) are missing from input feed ({[*input_feed]})."
            )

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Run in another thread, which then calls callback(results, user_data, error)."""
        self._require_inputs(input_feed)
        runtime = self.runtime
        if runtime is not None:
            names = output_names or self._outputs
            runtime.run_async(names, input_feed, callback, user_data, run_options)
            return

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as failure:  # told to the callback, as onnxruntime does
                results, error = [], str(failure)
            callback(results, user_data, error)

        threading.Thread(target=work, daemon=True).start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Run on OrtValues, and return such."""
        self._require_inputs(input_dict_ort_values)
        names, runtime = output_names or self._outputs, self.runtime
        if runtime is not None:
            results = runtime.run_with_ort_values(names, input_dict_ort_values, run_options)
            return [renamed(value) for value in results]
        feed = {name: given(value) for name, value in input_dict_ort_values.items()}
        return [as_ort_value(value) for value in self._opened.values(names, feed)]

    def io_binding(self) -> Any:
        """Return an IOBinding of this session."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """Run on what is bound."""
        if iobinding.session is not self:
            raise ValueError("IOBinding must be used with the session that created it.")
        if isinstance(iobinding, TensorBinding):
            self._opened.bound(iobinding)
        else:
            iobinding.run_bound(run_options)

    def end_profiling(self) -> str:
        """End the profile, and return the path of its file."""
        runtime = self.runtime
        return "" if runtime is None else runtime.end_profiling()

    # ------------------------------------------------------------------------------------ facts

    def get_inputs(self) -> list[Any]:
        """Return the inputs, in the model's order."""
        return list(self._opened.inputs)

    def get_outputs(self) -> list[Any]:
        """Return the outputs, in the model's order."""
        return list(self._opened.outputs)

    def get_overridable_initializers(self) -> list[Any]:
        """Return the initializers for which a run may give another value."""
        return list(self._opened.overridable)

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
        return dict(self._opened.providers)

    @property
    def runtime(self) -> Any:
        """onnxruntime's session that runs the whole model; None where others run some of it."""
        self._reopen_after_fork()
        return self._opened.runtime

    def _reopen_after_fork(self) -> None:
        """Build the model anew in a forked child, which has no threads of its parent's model.

        Raises RuntimeException if its files have changed: it would be another model in silence.
        """
        if not self._opened.is_forked:
            return
        files = self._opened.files
        require_unchanged(files)
        if self._model_path is not None and files:
            self._model = next(iter(files))  # absolute: the child's folder may be another
        self._open(*self._asked, files)

    def __getattr__(self, name: str) -> Any:
        """Return what onnxruntime's session has beside: its memory, devices, tuning results."""
        runtime = self.runtime if "_opened" in self.__dict__ else None
        if runtime is None:
            raise AttributeError(
                f"InferenceSession has no {name!r}, which only a session that onnxruntime runs has",
                name=name,
                obj=self,
            )
        return getattr(runtime, name)

    def disable_fallback(self) -> None:
        """Raise errors instead of building once more for the CPU."""
        self._enable_fallback = False

    def enable_fallback(self) -> None:
        """Build once more for the CPU where no other provider takes the model."""
        self._enable_fallback = True

    def set_providers(
        self, providers: Any = None, provider_options: Sequence[dict[Any, Any]] | None = None
    ) -> None:
        """Build the model for other providers."""
        self._open(providers, provider_options)


def _reads_config(further: Mapping[str, Any]) -> bool:
    """Return whether a session's options are those in its model's file."""
    asked = further.get("read_config_from_model", os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL"))
    return str(asked) == "1"
