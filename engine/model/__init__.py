"""Model: one trained model, built for a target and run from any thread.

model.py      Model itself: predict, and what scripts call
build.py      building from a file or from memory; recipe.py: a model's file and settings
shortcut.py   engine.load
facts.py      what a model knows of itself; memory.py: its memory
update.py     resize and update_weights: what is built anew takes the place of what is
sharing.py    what a build asks of models that share weights or workspace
handle.py     the `with` block of whatever can be closed
group.py      ModelGroup, a wing: models that share weights and workspace; group_forms.py: what they
              have in common, and where their compiled forms are
"""

import sys
import typing

from engine.model.model import Model
from engine.tensor.enums import ModelGroupFlag as ModelGroupFlag
from engine.tensor.enums import ModelType

__all__ = ["Model", "ModelType"]

_WINGS = ("ModelExecutor", "ModelGroup", "ModelParallelRunner", "MultiModelRunner")
"""Names that MindSpore Lite has in its module `model`, and wings here."""

if not typing.TYPE_CHECKING:  # for a type checker it would offer every name

    def __getattr__(name):
        if name in _WINGS:
            from engine.wings import wing

            return wing(name)
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
