"""Building a model: from a file or from memory, once, for the target of a context."""

from __future__ import annotations

import os
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.config.checks import check_decryption, require, require_watchers
from engine.config.wording import own_text, prefixed
from engine.context import Context
from engine.errors import (
    BackendError,
    ExtensionError,
    InputError,
    ModelError,
    ModelNotFound,
    ModelStateError,
    SettingError,
    SharingError,
)
from engine.host.interrupts import pass_interrupt, raised_by_handler
from engine.model.recipe import Recipe, groups
from engine.model.state import BUILDING, NOT_BUILT, ModelState
from engine.runtime import extensions
from engine.tensor.enums import ModelType
from engine.wings import wing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.formats import ModelFile
    from engine.types import CancelToken, Progress
    from engine.typing import DecMode


def from_file(
    state: ModelState,
    model_path: str,
    model_type: ModelType,
    context: Context | None,
    config_path: str,
    config_dict: object,
    dec_key: bytes | None,
    dec_mode: DecMode,
    dec_num_parallel: int,
    variable_weights: object,
    progress: Progress | None,
    cancel: CancelToken | None,
) -> None:
    """See Model.build_from_file."""
    from engine.formats import ModelFile

    require("model_path", model_path, str)
    require("model_type", model_type, ModelType)
    context = Context() if context is None else require("context", context, Context)
    require("config_path", config_path, str)
    path = located(model_path, context)
    if not path:
        raise _absent(model_path)
    config = configuration_of(config_path, config_dict, "build_from_file")
    if dec_key:
        check_decryption(dec_key, dec_mode, dec_num_parallel)
    names = _names(variable_weights)
    require_watchers(progress, cancel)
    file = ModelFile(path, dec_key=dec_key or None, dec_mode=dec_mode)
    from_model_file(state, file, context, config, progress, cancel, names)
    state.path = path


def from_model_file(
    state: ModelState,
    file: ModelFile,
    context: Context,
    config: Mapping[str, Mapping[str, str]],
    progress: Progress | None,
    cancel: CancelToken | None,
    names: tuple[str, ...] = (),
) -> None:
    """Build what build_from_file builds, of a file that may have been opened before."""
    file.look_in(config.get("model_file", {}).get("mindir_path"))
    path = "" if file.path is None else file.name
    recipe = _recipe("build_from_file", file, context, config, path, names)
    _build(state, "build_from_file", recipe, progress, cancel)
    state.path = path


def from_buffer(
    state: ModelState,
    model_bytes: bytes,
    weight_bytes: bytes | None,
    model_type: ModelType | None,
    context: Context | None,
    config_path: str,
    config_dict: object,
    dec_key: bytes | None,
    dec_mode: DecMode,
    variable_weights: object,
    progress: Progress | None,
    cancel: CancelToken | None,
) -> None:
    """See Model.build_from_buffer."""
    from engine.formats import ModelFile

    require("model_bytes", model_bytes, bytes)
    if not model_bytes:
        raise ModelError("build_from_buffer failed, model_bytes is empty. Pass a whole model")
    if weight_bytes is not None:
        require("weight_bytes", weight_bytes, bytes)
    if model_type is not None:
        require("model_type", model_type, ModelType)
    if model_type is ModelType.MINDIR_LITE:
        raise ModelError(
            f"build_from_buffer failed, model_type should be MINDIR, but got {model_type}; "
            "leave it out to go by the content"
        )
    context = Context() if context is None else require("context", context, Context)
    require("config_path", config_path, str)
    config = configuration_of(config_path, config_dict, "build_from_buffer")
    if dec_key:
        check_decryption(dec_key, dec_mode, 0)
    names = _names(variable_weights)
    require_watchers(progress, cancel)
    file = ModelFile.of_bytes(model_bytes, weight_bytes or None)
    file.unlock(dec_key, dec_mode)
    recipe = _recipe("build_from_buffer", file, context, config, "", names)
    _build(state, "build_from_buffer", recipe, progress, cancel)


def _build(
    state: ModelState,
    caller: str,
    recipe: Recipe,
    progress: Progress | None,
    cancel: CancelToken | None,
) -> None:
    with state.lock:
        if state.why_not is not NOT_BUILT:
            reason = state.why_not or "the model is already built; make another Model"
            raise prefixed(ModelStateError(reason), f"{caller} failed! Error is ")
        state.why_not = BUILDING
        if groups and recipe.path and state.sharing is None:
            state.sharing = groups.get(os.path.realpath(recipe.path))
        recipe.sharing = state.sharing
        recipe.is_resizable, recipe.has_peers = state.is_resizable, state.has_peers
        observation = None
        try:
            if not (state.is_inner or extensions.unseen.trials):
                observation = _observation(recipe)
            if observation is None:
                built = recipe.build(progress, cancel)
            else:
                built = observation.build(recipe, progress, cancel)
        except BaseException as error:
            interrupt = raised_by_handler(error)
            if interrupt is not None and interrupt is not error:
                raise interrupt from None  # whatever it was translated to on its way
            if isinstance(
                error, BackendError | ExtensionError | InputError | ModelError | SharingError
            ):
                prefixed(error, f"{caller} failed! Error is ")
            elif type(error) is ValueError:
                raise _wrong_setting(error, caller) from error
            raise
        finally:
            state.why_not = NOT_BUILT
        state.recipe = recipe
        state.declared = built.signature
        state.named = built.signature.count
        state.observation = observation
        state.built = built
        state.why_not = ""
        state.provider, state.own_names = recipe.provider, recipe.own_names
        if built.unwritten is not None or built.measure is not None:
            state.built = built._replace(unwritten=None, measure=None)
        if built.unwritten is not None:
            wing("write_afterwards")(built.unwritten, partial(_reopen, weakref.ref(state)))
        if built.measure is not None:
            wing("measure_afterwards")(built.measure, state)


def _reopen(reference: weakref.ref[ModelState]) -> None:
    """Open a model anew from its entry of the compile cache, unless it is gone."""
    state = reference()
    if state is not None and state.built is not None:
        from engine.model.update import reopen

        reopen(state)


def _observation(recipe: Recipe) -> Any:
    """Return what tells observers of a model; None where none is switched on."""
    chosen = extensions.chosen(recipe.context, recipe.config)
    return wing("observation")(chosen, recipe.path) if chosen else None


def _names(variable_weights: object) -> tuple[str, ...]:
    if variable_weights == ():
        return ()
    from engine.config.variable_weights import require_names

    return require_names(variable_weights)


def _recipe(
    caller: str,
    file: ModelFile,
    context: Context,
    config: Mapping[str, Mapping[str, str]],
    path: str,
    names: tuple[str, ...],
) -> Recipe:
    try:
        return Recipe(file, context, config, path, names)
    except ValueError as error:
        if type(error) is ValueError:
            raise _wrong_setting(error, caller) from error
        raise


def _wrong_setting(error: ValueError, caller: str) -> SettingError:
    """Return the error of a build for a setting that whoever reads it refused."""
    return prefixed(SettingError(own_text(error)), f"{caller} failed! Error is ")


def configuration_of(path: str, sections: object, caller: str) -> dict[str, dict[str, str]]:
    """Return the sections that a file and a dict give together; the dict wins."""
    if not path and not sections:
        return {}
    from engine.config.reader import configuration

    return configuration(path, sections, caller)


def located(path: str, context: Context) -> str:
    """Return the path of a model's file, or of this rank's part of it; "" where neither is there.

    This rank's part is named as in upstream's scripts: model1.onnx for rank 1 and model.onnx.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a NUL
        pass_interrupt(error)
        if context.gpu.group_size < 2:
            return ""
        stem, suffix = os.path.splitext(path)
        own = f"{stem}{context.ascend.rank_id}{suffix}"
        return own if os.path.isfile(own) else ""
    except OSError as error:  # opening it says what is wrong
        pass_interrupt(error)
    return path


def _absent(path: str) -> ModelNotFound:
    from engine.formats.given import absent

    failure = "build_from_file failed, model_path does not exist! got "
    # MindSpore Lite's converter would have called this converter's model so.
    name = path.removesuffix("_graph.mindir") + ".mindir"
    if path.endswith("_graph.mindir") and os.path.exists(name):
        hint = f"there is {name!r}: this converter names a large model as any other"
        return ModelNotFound(f"{failure}{path!r}; {hint}", path)
    return absent(path, failure)
