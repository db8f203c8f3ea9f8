"""The module in which MindSpore Lite has its Converter; here it is a wing's."""

from typing import TYPE_CHECKING

from engine.tensor.enums import FmkType

if TYPE_CHECKING:
    from engine.convert.converter import Converter
else:
    from engine.wings import wing

    Converter = wing("Converter")

__all__ = ["Converter", "FmkType"]
