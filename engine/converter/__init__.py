"""Other frameworks' models as ONNX files; the module in which MindSpore Lite has its Converter.

converter.py   Converter, as scripts have it; pipeline.py: one conversion, step by step
job.py         what is asked, and the report of what was done
sources/       the frameworks: one file each
shapes.py      input shapes, and the dims that follow from them; batch.py: another fixed batch,
               comparison.py: whether that gives the same
quantize/      int8, with calibration
half.py        weights as float16
edges.py       types and layout of inputs and outputs; integer_edges.py: those of int8 models
graphs.py      what the passes share
weights.py     external data, in and out
write.py       the file; trial.py: whether it runs
scratch.py     folders for what lies in between
sample_inputs.py     inputs that nobody gave
unused_settings.py   what nobody reads in a configuration
dump.py        the graph as text, for who asks for it

Nothing is imported here before it is needed: neither onnx nor a framework.
"""

from typing import TYPE_CHECKING, Any

from engine.tensor.enums import FmkType

if TYPE_CHECKING:
    from engine.converter.converter import Converter

__all__ = ["Converter", "FmkType"]


def __getattr__(name: str) -> Any:
    if name == "Converter":
        from engine.converter.converter import Converter

        return Converter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
