"""Building a Model: from a file or from memory, once, for the target of a context."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from engine.config.checks import check_decryption, require, require_watchers
from engine.config.wording import own_text, prefixed
from engine.enums import ModelType
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
from engine.host.interrupts import raised_by_handler
from engine.model.facts import NOT_BUILT, ModelFacts
from engine.model.recipe import Recipe, groups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.context import Context
    from engine.formats import ModelFile
    from engine.runtime.signature import Signature
    from engine.types import CancelToken, Progress
    from engine.typing import DecMode

BUILDING = "the model is being built; wait until build_from_file has returned"


class ModelBuild(ModelFacts):
    """A model as it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.provider = ""
        self.lora_name_map: dict[str, str] = {}
        self._declared: Signature | None = None
        self._is_resizable = True  # False in a runner: its users have no resize
        self._named = -1  # how many inputs a call by name has to have
        # Reentrant, so that a progress callback that builds this model is refused, not stuck.
        self._building = threading.RLock()

    def build_from_file(
        self,
        model_path: str,
        model_type: ModelType,
        context: Context | None = None,
        config_path: str = "",
        config_dict: dict[str, dict[str, str]] | None = None,
        dec_key: bytes | None = None,
        dec_mode: DecMode = "AES-GCM",
        dec_num_parallel: int = 0,
        *,
        variable_weights: Sequence[str] = (),
        progress: Progress | None = None,
        cancel: CancelToken | None = None,
    ) -> None:
        """Read a model file and compile it for the context's target.

        model_path: among several ranks a file of this name need not exist: that of rank 1 is
        model1.onnx where model.onnx is given.
        context: None stands for Context(), the CPU. config_path, config_dict: sections of
        options; the dict wins, and what nobody reads is logged. dec_key: for encrypted files, with
        dec_mode and dec_num_parallel (0..64). variable_weights: those that update_weights may
        change, beside what the configuration declares. progress(phase, done, total) is called while
        a backend compiles; `cancel`, an engine.CancelToken, stops it: as soon as the backend
        can, at the latest when it has compiled.

        Raises TypeError for arguments of the wrong type; RuntimeError (ModelError) for a file
        that is missing or cannot be compiled, (BackendError) for a target that cannot be had,
        (ModelStateError) for a model that is built already, (SettingError, a ValueError too) for a
        wrong setting; Cancelled.
        A model that failed to build may be built again.
        """
        from engine.context import Context
        from engine.formats import ModelFile

        require("model_path", model_path, str)
        require("model_type", model_type, ModelType)
        context = Context() if context is None else require("context", context, Context)
        require("config_path", config_path, str)
        path = located(model_path, context)
        if not path:
            raise _absent(model_path)
        model_path = path
        config = configuration_of(config_path, config_dict, "build_from_file")
        if dec_key:
            check_decryption(dec_key, dec_mode, dec_num_parallel)
        names = _names(variable_weights)
        require_watchers(progress, cancel)
        file = ModelFile(model_path, dec_key=dec_key or None, dec_mode=dec_mode)
        self._build_file(file, context, config, progress, cancel, names)
        self.model_path_ = model_path

    def _build_file(
        self,
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
        self._build("build_from_file", recipe, progress, cancel)
        self.model_path_ = path

    def build_from_buffer(
        self,
        model_bytes: bytes,
        weight_bytes: bytes | None = None,
        model_type: ModelType | None = None,
        context: Context | None = None,
        config_path: str = "",
        config_dict: dict[str, dict[str, str]] | None = None,
        *,
        dec_key: bytes | None = None,
        dec_mode: DecMode = "AES-GCM",
        variable_weights: Sequence[str] = (),
        progress: Progress | None = None,
        cancel: CancelToken | None = None,
    ) -> None:
        """Compile a model that is in memory, as build_from_file does one in a file.

        model_bytes: a whole ONNX or MindIR model; external data has no folder here and is refused.
        weight_bytes: the data file of a split MindIR model; an ONNX model has none.
        dec_key: for an encrypted model in one piece, with dec_mode.
        model_type: None goes by the content, and so does MINDIR.

        Raises what build_from_file raises.
        """
        from engine.context import Context
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
        self._build("build_from_buffer", recipe, progress, cancel)

    def _build(
        self,
        caller: str,
        recipe: Recipe,
        progress: Progress | None,
        cancel: CancelToken | None,
    ) -> None:
        with self._building:
            if self._why_not is not NOT_BUILT:
                state = self._why_not or "the model is already built; make another Model"
                raise prefixed(ModelStateError(state), f"{caller} failed! Error is ")
            self._why_not = BUILDING
            if groups and recipe.path and self._sharing is None:
                self._sharing = groups.get(os.path.realpath(recipe.path))
            recipe.sharing = self._sharing
            recipe.is_resizable = self._is_resizable
            try:
                built = recipe.build(progress, cancel)
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
                self._why_not = NOT_BUILT
            self._recipe = recipe
            self._declared = built.signature
            self._named = built.signature.count
            self._built = built
            self._why_not = ""
            self.provider = recipe.provider
            self.lora_name_map = recipe.own_names

    @property
    def _why_not_in_group(self) -> str:
        """Return why the model cannot be added to a group; "" if it can."""
        if self._sharing is not None:
            return "is in a group already"
        if self._why_not is not NOT_BUILT:
            return "is built already, or closed; add a model before build_from_file"
        return ""


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
        if raised_by_handler(error):
            raise
        if context.gpu.group_size < 2:
            return ""
        stem, suffix = os.path.splitext(path)
        own = f"{stem}{context.ascend.rank_id}{suffix}"
        return own if os.path.isfile(own) else ""
    except OSError as error:  # opening it says what is wrong
        if raised_by_handler(error):
            raise
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
