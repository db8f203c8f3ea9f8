"""The model of a worker, where it is: in the worker's process, or in an actor."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.backends import find_target, open_backend
from engine.errors import ModelError, SettingError
from engine.formats.opened import FileVersion, state_of
from engine.model.model import Model, model_state
from engine.plan.options import has_own_device_ids, sections_read
from engine.runtime.extensions import description
from engine.tensor import Tensor
from engine.tensor.enums import ModelType
from engine.tensor.values import arrays_in
from engine.types import CancelToken, Capability
from engine.workers.cuts import proven
from engine.workers.protocol import Assignment, Cuts, Ready

if TYPE_CHECKING:
    from engine.model.update import Change
    from engine.types import Progress
    from engine.weights.variables import Update


_MOST_OUTPUTS = 16


class ServedModel:
    """Builds the model of an assignment and runs it, one run at a time.

    Runs are numbered, so that a `stop` from another thread meets the one that it is meant for.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._model = Model()
        self._state = model_state(self._model)
        self._state.is_inner = self._state.has_peers = True
        self._can_stop = False
        self._lock = threading.Lock()
        self._number = 0  # of the run under way, or the last
        self._stopped = 0  # the latest that is to be stopped
        self._token: CancelToken | None = None  # of the run under way
        # By the identity of the list of outputs: the list, and tensors of what is in there.
        self._outputs: dict[int, tuple[list[Any], list[Tensor]]] = {}
        self._update: list[Change] = []  # that is prepared

    def build(self, progress: Progress | None) -> Ready:
        """See Worker.build."""
        wanted = self._assignment
        if wanted.cores:
            os.sched_setaffinity(0, wanted.cores)
        _refuse_own_devices(wanted)
        self._model.build_from_file(
            wanted.model_path,
            ModelType.MINDIR,
            wanted.context,
            config_dict={section: dict(keys) for section, keys in wanted.config.items()},
            dec_key=wanted.dec_key,
            dec_mode=wanted.dec_mode,
            progress=progress,
        )
        recipe = self._state.recipe
        data_files = recipe.data_files if wanted.version and recipe is not None else {}
        self._refuse_other_files(data_files)
        plan = self._state.require_built().plan
        self._can_stop = not plan.lacks(Capability.CANCEL_PREDICT)[0]
        specs = self._model.inputs, self._model.outputs
        keeps_deadlines = not plan.lacks(Capability.DEADLINES)[0]
        weights = recipe.weights if recipe is not None else None
        variable = () if weights is None else weights.specs
        cuts = None
        if wanted.is_proving and recipe is not None:
            cuts = proven(recipe.opened_again, *specs, wanted.batch_axes)
            if cuts is not None and state_of(plan.source):
                cuts = Cuts("it keeps state from one predict to the next")
        listed = replace(plan.device, id=wanted.device_id)  # as the user numbers it
        names = {str(plan.device): str(listed)}
        return Ready(
            *specs,
            keeps_deadlines,
            self._can_stop,
            dict(data_files),
            variable,
            cuts,
            description(plan, self._state.require_built().signature, "").backends,
            tuple(listed if device == plan.device else device for device in plan.run_on),
            tuple(
                replace(node, device=names.get(node.device, node.device))
                for node in self._model.placement
            ),
        )

    def _refuse_other_files(self, data_files: Mapping[str, FileVersion]) -> None:
        """Raise ModelError where a file was changed since the first workers have read it.

        data_files: that the model was built of.
        """
        task = self._assignment
        if task.version is None:
            return
        found = {task.model_path: FileVersion.of(os.stat(task.model_path)), **data_files}
        wanted = {task.model_path: task.version, **task.data_files}
        for path, version in found.items():
            # The first worker tells which data files there are; later ones read no others.
            if wanted.get(path, None if task.data_files else version) == version:
                continue
            what = "was changed since the runner was built"
            if path not in wanted:
                what = "is read now, and was not when the runner was built"
            raise ModelError(f"{path}: {what}; build another runner for the model", path)

    def run(
        self,
        number: int,
        values: list[Any],
        outputs: list[Any] | None,
        deadline_s: float | None,
        may_stop: bool = True,
    ) -> list[Any]:
        """Run the model. See Worker.run.

        number: from 1, never less than the last. outputs: None, or an array for each output, to be
        filled and returned as this very list, which does not change.
        Raises what Model.predict raises.
        """
        token = None
        if may_stop and self._can_stop:
            token = CancelToken()
            with self._lock:
                self._number, self._token = number, token
                if self._stopped >= number:
                    token.cancel()
        left_s = None if deadline_s is None else max(1e-6, deadline_s - time.monotonic())
        try:
            if outputs is None:
                results = self._model.predict(values, timeout_s=left_s, cancel=token)
                return [arrays_in(result) for result in results]
            self._model.predict(values, self._tensors(outputs), timeout_s=left_s, cancel=token)
            return outputs
        finally:
            self._token = None

    def _tensors(self, outputs: list[Any]) -> list[Tensor]:
        """Return the same tensors for the same outputs."""
        known = self._outputs.get(id(outputs))
        if known is None or known[0] is not outputs:
            if len(self._outputs) >= _MOST_OUTPUTS:
                self._outputs.clear()
            known = self._outputs[id(outputs)] = outputs, [Tensor(array) for array in outputs]
        return known[1]

    def prepare(self, weights: Update) -> list[str]:
        """See Worker.prepare."""
        from engine.model.update import prepare_updates  # rare

        self.settle(take=False)
        self._update = prepare_updates([self._state], weights)
        return [name for change in self._update for name in change.weights]

    def settle(self, take: bool) -> None:
        """See Worker.settle."""
        from engine.model.update import drop_updates, make_updates  # rare

        update, self._update = self._update, []
        if update:
            (make_updates if take else drop_updates)([self._state], update)

    def stop(self, number: int) -> None:
        """Stop the run of this number, which may be over, or on its way."""
        with self._lock:
            self._stopped = max(self._stopped, number)
            token = self._token if self._number == number else None
        if token is not None:
            token.cancel()

    def close(self) -> None:
        """Free the model."""
        self._model.close()


def _refuse_own_devices(wanted: Assignment) -> None:
    """Raise SettingError where the configuration gives the model other devices than the runner."""
    if not any(keys.get("device_ids") for keys in wanted.config.values()):
        return
    for name in wanted.context.target:
        target = find_target(name)
        for section in sections_read(target):
            text = wanted.config.get(section, {}).get("device_ids")
            if text and not has_own_device_ids(open_backend(target.backend)):
                raise SettingError(
                    f"[{section}] device_ids = {text}: a MultiDeviceRunner runs the model on each "
                    "of its own device_ids; leave the setting out"
                )
