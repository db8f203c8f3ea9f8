"""Choosing one of a model's gears for each predict."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.errors import InputError
from engine.types import DeviceBuffer, Values
from engine_ascend_ge.acl_call import done, got
from engine_ascend_ge.layout import Layout, Output, settled
from engine_ascend_ge.om import Description

_GEARS_SHOWN = 20


class GearChoice:
    """The gear that one loaded model was set to.

    output_shapes: the outputs' shapes in that gear.
    """

    def __init__(
        self,
        acl: Any,
        name: str,
        model: int,
        desc: int,
        layout: Layout,
        description: Description,
    ) -> None:
        assert description.gear_input is not None  # gears come with it
        self._acl = acl
        self._name = name
        self._model = model
        self._desc = desc
        self._layout = layout
        self._gears = description.gears
        self._input = description.gear_input.index
        self._gear: tuple[int, ...] = ()
        self._shapes: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        self.output_shapes: list[tuple[int, ...]] = []

    def choose(self, inputs: Values, dataset: int) -> None:
        """Set the model to the shapes of these inputs, which must be those of one gear.

        Raises InputError naming the gears.
        """
        gear: tuple[int, ...] = ()
        for item, value in zip(self._layout.ins, inputs, strict=True):
            if item.port is not None:
                assert isinstance(value, np.ndarray | DeviceBuffer)
                gear += value.shape
        if gear == self._gear:
            return
        if gear not in self._layout.gears:
            raise self._no_such_gear(gear)
        self._gear = ()  # unknown, if this fails
        dims = {"name": "", "dimCount": len(gear), "dims": list(gear)}
        code = self._acl.mdl.set_input_dynamic_dims(self._model, dataset, self._input, dims)
        done(code, f"choose the gear {list(gear)}", self._name)
        if gear not in self._shapes:
            self._shapes[gear] = [self._output_shape(out) for out in self._layout.outs]
        self.output_shapes = self._shapes[gear]
        self._gear = gear

    def _output_shape(self, out: Output) -> tuple[int, ...]:
        doing = f"read the shape of output {out.spec.name!r}"
        dims = got(self._acl.mdl.get_cur_output_dims(self._desc, out.port.index), doing, self._name)
        return settled(out.spec.shape, tuple(dims["dims"]))

    def _no_such_gear(self, gear: tuple[int, ...]) -> InputError:
        all_axes = [
            (item.spec.name, axis, dim < 0)
            for item in self._layout.ins
            if item.port is not None
            for axis, dim in enumerate(item.port.dims)
        ]

        def open_sizes(row: tuple[int, ...]) -> list[int]:
            return [size for size, (_, _, is_open) in zip(row, all_axes, strict=True) if is_open]

        axes = [(name, axis) for name, axis, is_open in all_axes if is_open]
        gears = [open_sizes(row) for row in self._gears]
        more = f" and {len(gears) - _GEARS_SHOWN} more" if len(gears) > _GEARS_SHOWN else ""
        return InputError(
            f"{', '.join(f'dim {axis} of input {name!r}' for name, axis in axes)}: got "
            f"{open_sizes(gear)}, but the model was compiled for the gears "
            f"{', '.join(map(str, gears[:_GEARS_SHOWN]))}{more}; pad the inputs to one of them, or "
            "add it to option 'dynamic_dims'",
            axes[0][0],
        )
