"""Model: one trained model, built for a target and run from any thread.

model.py      Model itself: predict, and what scripts call
build.py      building from a file or from memory; recipe.py: a model's file and settings
facts.py      what a model knows of itself; memory.py, profiling.py: its memory, its time by kernel
update.py     resize and update_weights: what is built anew takes the place of what is
group.py      models that share weights or workspace
handle.py     the `with` block of whatever can be closed
"""

import sys
import typing

from engine.enums import ModelGroupFlag as ModelGroupFlag
from engine.enums import ModelType
from engine.model.model import Model

__all__ = ["Model", "ModelType"]

_WINGS = ("ModelExecutor", "ModelParallelRunner", "MultiModelRunner")
"""Names that MindSpore Lite has in its module `model`, and wings here."""

if not typing.TYPE_CHECKING:  # for a type checker it would offer every name

    def __getattr__(name):
        if name in _WINGS:
            from engine.wings import wing

            return wing(name)
        if name == "ModelGroup":
            from engine.model.group import ModelGroup

            return ModelGroup
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
