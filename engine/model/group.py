"""ModelGroup: models that share weights or workspace."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from engine.config.checks import require
from engine.config.wording import prefixed
from engine.context import Context
from engine.errors import BackendError, InputError, ModelError, ModelStateError
from engine.model import recipe
from engine.model.group_forms import Sharing
from engine.model.model import Model, model_state
from engine.model.state import NOT_BUILT, ModelState
from engine.tensor.enums import ModelGroupFlag, ModelType

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["ModelGroup"]

_WEIGHTS = (ModelGroupFlag.SHARE_WEIGHT, ModelGroupFlag.SHARE_WEIGHT_WORKSPACE)
_WORKSPACE = (ModelGroupFlag.SHARE_WORKSPACE, ModelGroupFlag.SHARE_WEIGHT_WORKSPACE)
_ADD_FAILED = "ModelGroup's add model failed."
_CALCULATION_FAILED = "ModelGroup's cal max size of workspace failed."


class ModelGroup:
    """Models of this process that share weights, workspace or both.

    flags: SHARE_WEIGHT: tensors with the same content are in memory once, whichever of the models
        they are in. SHARE_WORKSPACE: activations lie in memory that the models use in turn; those
        that run at once take as much as they need.

    Add the models before they are built: as objects, to share weights, or by the paths of their
    files, for every flag. Where a backend cannot share, each model has a copy of its own, and a
    warning says so; `Model.memory()` tells what came of it.
    """

    def __init__(self, flags: ModelGroupFlag = ModelGroupFlag.SHARE_WORKSPACE) -> None:
        if not isinstance(flags, ModelGroupFlag):
            raise ModelStateError(
                "Parameter flags should be ModelGroupFlag.SHARE_WORKSPACE or "
                "ModelGroupFlag.SHARE_WEIGHT or ModelGroupFlag.kShareWeightAndWorkspace"
            )
        self._flags = flags
        self._paths: list[str] = []
        self._sharing = Sharing(weights=flags in _WEIGHTS, workspace=flags in _WORKSPACE)

    def add_model(self, models: Sequence[str] | Sequence[Model]) -> None:
        """Add models that are not built yet: all objects, or all paths of files.

        A path stands for every model that is built from that file later, in this process.
        Raises TypeError for elements of another type; RuntimeError (ModelStateError) for an empty
        list, and for objects that are built, closed or in a group already, or in a group that
        shares workspace. None is added then.
        """
        if not isinstance(models, list | tuple):
            raise TypeError(f"models must be list/tuple, but got {type(models)}.")
        if not models:
            raise ModelStateError("models cannot be empty")
        kind = Model if isinstance(models[0], Model) else str
        for index, model in enumerate(models):
            if not isinstance(model, kind):
                raise TypeError(
                    f"models element must be all str or Model, but got {type(model)} at index "
                    f"{index}."
                )
        if kind is str:
            for path in models:
                self._paths.append(str(path))
                recipe.groups[os.path.realpath(path)] = self._sharing
            return
        objects = [model for model in models if isinstance(model, Model)]
        if self._sharing.workspace:
            raise ModelStateError(
                f"{_ADD_FAILED} models that are objects share weights only; pass the paths of "
                "their files to share workspace"
            )
        for index, model in enumerate(objects):
            reason = _why_not(model_state(model))
            if any(model is earlier for earlier in objects[:index]):
                reason = "is in the list twice"
            if reason:
                raise ModelStateError(f"{_ADD_FAILED} the model at index {index} {reason}")
        for model in objects:
            model_state(model).sharing = self._sharing

    def cal_max_size_of_workspace(self, model_type: ModelType, context: Context) -> None:
        """Measure the workspace of each path that was added, and keep the largest.

        Each model is built and run on zeros in a process of its own, open axes at size 1.
        `Model.memory()` of models in this group then says what the largest needs. On cpu no memory
        is set aside for that: what is shared grows to that size.
        Raises TypeError for arguments of the wrong type; RuntimeError for a model that cannot be
        built (ModelError), a target that cannot be had (BackendError), a context with provider
        "ge", or a group without paths (ModelStateError).
        """
        require("model_type", model_type, ModelType)
        require("context", context, Context)
        if not self._paths:
            raise ModelStateError(
                f"{_CALCULATION_FAILED} no paths of models were added; call add_model first"
            )
        if context.ascend.provider in ("ge", "ge-v1"):
            raise ModelStateError(
                f"{_CALCULATION_FAILED} provider 'ge' sizes workspace itself; leave this call out"
            )
        from engine.weights.shared.dry_run import workspace_bytes

        for path in dict.fromkeys(self._paths):
            try:
                needed = workspace_bytes(path, context)
            except (BackendError, InputError, ModelError, ValueError) as error:
                prefixed(error, f"{_CALCULATION_FAILED} ")
                raise
            self._sharing.workspace_bytes = max(self._sharing.workspace_bytes, needed)

    def __repr__(self) -> str:
        return f"<engine.ModelGroup {self._flags.name}>"


def _why_not(state: ModelState) -> str:
    """Return why a model cannot be added to a group; "" if it can."""
    if state.sharing is not None:
        return "is in a group already"
    if state.why_not is not NOT_BUILT:
        return "is built already, or closed; add a model before build_from_file"
    return ""
