"""From a file, options and providers to a model that is built."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import Context, Model, ModelType
from engine.errors import EngineError, InputError, SettingError
from engine.formats.opened import FileVersion, is_changed
from engine.model.handle import FORKED
from engine.model.model import model_state
from engine.onnxruntime import alone
from engine.onnxruntime.arguments import ModelMetadata, copied, copied_metadata, node_arg
from engine.onnxruntime.errors import made, translated
from engine.onnxruntime.genuine import genuine
from engine.onnxruntime.options import Noted, noted_of
from engine.onnxruntime.providers import CPU, TARGETS, Asked, asked
from engine.onnxruntime.settings import Sections, context_of, sections_of
from engine.onnxruntime.values import TensorValue, given
from engine.tensor import Tensor
from engine.tensor.values import arrays_in
from engine.types import ValueKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.onnxruntime.binding import TensorBinding


NO_FILES: Mapping[str, FileVersion] = {}


class Opened:
    """A session's model, with what onnxruntime would say of it.

    options: the session's. providers: those that run it, each with its options. files: that it was
    made of, by absolute paths, as they were then.
    """

    def __init__(
        self, model: Model, options: Any, providers: Asked, files: Mapping[str, FileVersion]
    ) -> None:
        self.model = model
        self.state = model_state(model)
        self.options = options
        self.providers = providers
        self.files = files
        self.signature = self.state.require_built().signature
        self.is_plain = self.signature.is_plain
        self.places = {spec.name: place for place, spec in enumerate(self.signature.outputs)}
        runtime = self.runtime
        if runtime is None:
            self.inputs = [node_arg(spec) for spec in self.signature.inputs]
            self.outputs = [node_arg(spec) for spec in self.signature.outputs]
            self.overridable: list[Any] = []
            self.metadata: Any = ModelMetadata(model.metadata)
        else:
            self.inputs, self.outputs = copied(runtime.get_inputs()), copied(runtime.get_outputs())
            self.overridable = copied(runtime.get_overridable_initializers())
            self.metadata = copied_metadata(runtime.get_modelmeta())

    @property
    def is_forked(self) -> bool:
        """True in a forked child, to which the parent's model is of no use."""
        return self.state.why_not is FORKED

    @property
    def runtime(self) -> Any:
        """The session of onnxruntime that runs all of the model; None where there is none.

        Asked for anew each time: the model may have been opened from the compile cache since.
        """
        if genuine is None:
            return None
        found = getattr(self.state.require_built().plan.executable, "session", None)
        return found if isinstance(found, genuine.InferenceSession) else None

    def run(self, names: Sequence[str], feed: Mapping[str, Any], run_options: Any) -> list[Any]:
        """Run the model; see InferenceSession.run."""
        runtime = self.runtime
        if runtime is None:
            return [arrays_in(value) for value in self.values(names, self._converted(feed))]
        is_plain = self.is_plain and run_options is None and isinstance(names, list | tuple)
        arrays = self._arrays(feed) if is_plain else None
        if arrays is not None and all(name in self.places for name in names):
            try:
                results = self.model.predict(arrays)
            except InputError:
                pass
            except EngineError as error:
                raise translated(error) from None
            else:
                return [arrays_in(results[self.places[name]]) for name in names]
        # It takes and refuses with its own leniency and in its own words.
        feed = {name: self._for_runtime(value) for name, value in feed.items()}
        return runtime.run(names, feed, run_options)  # type: ignore[no-any-return]

    def values(self, names: Sequence[str], feed: Mapping[str, Any]) -> list[Any]:
        """Run the model as the engine does; return its Tensors and lists."""
        if isinstance(names, str):
            raise TypeError(f"output_names: expected a list of names, got {names!r}; put it in []")
        self.require_ranks(feed)
        for name in names:
            if name not in self.places:
                raise made("InvalidArgument", f"Invalid output name: {name}")
        try:
            results = self.model.predict(dict(feed))
        except EngineError as error:
            raise translated(error) from None
        return [results[self.places[name]] for name in names]

    def require_ranks(self, feed: Mapping[str, Any]) -> None:
        """Raise InvalidArgument for a value of another rank: a Model takes a flat array."""
        for spec in self.signature.inputs:
            shape = getattr(feed.get(spec.name), "shape", None)
            if spec.shape is not None and shape is not None and len(shape) != len(spec.shape):
                raise made(
                    "InvalidArgument",
                    f"Invalid rank for input: {spec.name} Got: {len(shape)} Expected: "
                    f"{len(spec.shape)} Please fix either the inputs/outputs or the model.",
                )

    def bound(self, binding: TensorBinding) -> None:
        """Run on what is bound."""
        self.require_ranks(binding.inputs)
        try:
            binding.run(self.model, [spec.name for spec in self.signature.outputs])
        except EngineError as error:
            raise translated(error) from None

    def _converted(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return a feed with arrays for lists, of the type that is declared.

        Raises RuntimeError, as onnxruntime does, for what it takes no tensor of.
        """
        specs = {spec.name: spec for spec in self.signature.inputs}
        converted = {}
        for name, value in feed.items():
            value, spec = given(value), specs.get(name)
            if spec is not None and spec.kind is ValueKind.TENSOR:
                if isinstance(value, list):
                    value = _array_of(name, value, spec.dtype.numpy)
                elif isinstance(value, int | float | complex | str | bytes | tuple | np.generic):
                    raise RuntimeError(
                        f"Unable to handle object of type {type(value)}: input {name!r} takes an "
                        f"array or a list, got {value!r}; pass it in numpy.array"
                    )
            converted[name] = value
        return converted

    def _for_runtime(self, value: Any) -> Any:
        """Return what onnxruntime takes of a value in a feed."""
        if isinstance(value, TensorValue | Tensor):
            value = given(value)
            return value.get_data_to_numpy() if isinstance(value, Tensor) else value
        return value

    def _arrays(self, feed: Mapping[str, Any]) -> list[Any] | None:
        """Return the arrays of a feed in the model's order, if it has nothing else in it.

        Nor arrays of another rank: a Model takes a flat one, and onnxruntime anything for a scalar.
        """
        signature = self.signature
        if len(feed) != len(signature.names):
            return None
        values = []
        for name, dtype, spec in zip(signature.names, signature.dtypes, signature.inputs):
            value = feed.get(name)
            if type(value) is not np.ndarray or value.dtype != dtype or dtype.hasobject:
                return None
            if spec.shape is not None and value.ndim != len(spec.shape):
                return None
            values.append(value)
        return values


def _array_of(name: str, value: list[Any], dtype: Any) -> Any:
    try:
        return np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        text = f"Could not create tensor from given input list: input {name!r}: {error}"
        raise RuntimeError(text) from None


class Alone:
    """A session's model that onnxruntime alone runs; see `alone`."""

    is_plain = is_forked = False
    state = None
    files = NO_FILES

    def __init__(self, runtime: Any, options: Any) -> None:
        self.runtime = runtime
        self.options = options
        self.providers: Asked = runtime.get_provider_options()
        self.inputs, self.outputs = copied(runtime.get_inputs()), copied(runtime.get_outputs())
        self.overridable = copied(runtime.get_overridable_initializers())
        self.metadata = copied_metadata(runtime.get_modelmeta())

    def run(self, names: Sequence[str], feed: Mapping[str, Any], run_options: Any) -> list[Any]:
        """Run the model; see InferenceSession.run."""
        return self.runtime.run(names, feed, run_options)  # type: ignore[no-any-return]


def opened(
    model: str | bytes,
    options: Any,
    providers: Any,
    provider_options: Any,
    further: Mapping[str, Any],
) -> Opened | Alone:
    """Build a model. Raises onnxruntime's exceptions."""
    noted = noted_of(options)
    wanted = asked(providers, provider_options, noted.providers)
    if alone.is_ort_format(model, options):
        return _alone(model, options)
    disabled = further.get("disabled_optimizers") or ()
    sections = sections_of(options, wanted, disabled)
    try:
        source, files = model, NO_FILES
        if noted.initializers or noted.files:
            from engine.onnxruntime.replaced import replaced  # rare

            source, files = replaced(model, noted)
        built = _built(source, context_of(options, wanted), sections, noted)
    except EngineError as error:
        if alone.is_sparse(error):
            return _alone(model, options)
        raise translated(error) from error
    if options.optimized_model_filepath:
        _write_optimized(model, options)
    recipe = model_state(built).recipe
    if source is model and recipe is not None:
        files = recipe.files
    return Opened(built, options, _running(built, wanted), files)


def require_unchanged(
    files: Mapping[str, FileVersion], now: Mapping[str, FileVersion] | None = None
) -> None:
    """Raise RuntimeException if files, of which a session was made, are others now.

    now: the files as they were read again; without it, as they are on the disk. One that is not
    there any more is left to whoever opens it.
    """
    for path, version in files.items():
        if is_changed(path, version) if now is None else now.get(path) != version:
            raise made(
                "RuntimeException",
                f"{path}: has changed since the session was made, and a forked child reads it "
                "again; make a new InferenceSession in the child, for the file as it is now",
            )


def _built(model: str | bytes, context: Context, sections: Sections, noted: Noted) -> Model:
    """Build a model, without the entries that nothing reads: onnxruntime takes any."""
    built = Model()
    try:
        if isinstance(model, bytes):
            built.build_from_buffer(model, None, None, context, "", sections, cancel=noted.cancel)
        else:
            kind = ModelType.MINDIR  # whatever it is
            built.build_from_file(model, kind, context, "", sections, cancel=noted.cancel)
    except SettingError as error:
        unread = next((key for key in noted.entries if f" {key} {_UNREAD}" in str(error)), "")
        if not unread:
            raise
        _tell_unread(unread, noted.entries[unread])
        del sections["cpu_context"][unread]
        return _built(model, context, sections, noted)
    return built


_UNREAD = "is no session configuration entry"


def _tell_unread(key: str, text: str) -> None:
    logging.getLogger("engine").warning("session option %s = %r has no effect", key, text)


def _alone(model: str | bytes, options: Any) -> Alone:
    text = (
        "a model of ORT's own format, or with sparse inputs or outputs: onnxruntime alone runs it"
    )
    logging.getLogger("engine").info("%s", text)
    return Alone(alone.session(model, options), options)


def _write_optimized(model: str | bytes, options: Any) -> None:
    """Have onnxruntime write its optimised graph, by a session made for that."""
    if genuine is None:
        path = options.optimized_model_filepath
        text = "optimized_model_filepath = %r has no effect: only onnxruntime writes its graph"
        logging.getLogger("engine").warning(text, path)
        return
    is_profiled = options.enable_profiling
    options.enable_profiling = False
    try:
        alone.session(model, options)
    finally:
        options.enable_profiling = is_profiled


def _running(model: Model, wanted: Asked) -> Asked:
    """Return the providers whose target runs some of the model; the CPU is always one."""
    plan = model_state(model).require_built().plan
    parts = [*plan.parts, (plan.backend, plan.device)]
    names = {TARGETS[CPU], *(name for part, device in parts for name in (part.name, device.type))}
    return {name: given for name, given in wanted.items() if TARGETS[name] in names}
