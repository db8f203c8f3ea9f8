"""The module in which MindSpore Lite has its Converter; it is in engine.convert.converter."""

from engine.convert.converter import Converter, FmkType

__all__ = ["Converter", "FmkType"]
