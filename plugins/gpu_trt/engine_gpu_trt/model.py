"""A model that TensorRT has read, as load hands it to compile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.types import ModelSource, TensorSpec
from engine_gpu_trt import form
from engine_gpu_trt.cuda import Gpu
from engine_gpu_trt.engines import Engine
from engine_gpu_trt.options import Settings
from engine_gpu_trt.outside import Weight


class TrtModel:
    """A model that TensorRT has read: a parsed network, or an engine that was compiled before.

    inputs, outputs: as the model declares them. unsupported: nodes that TensorRT cannot run.
    names: the network's input names by the model's. how: what was done to it, for the placement.
    data: the bytes that the network was parsed from, where they are not the source's.
    outside: the weights that are inputs of the network, by name.
    collectives: those inside the network, in order: what each does, on what type and shape.
    form: what stands beside the engine of a compiled form.
    Where the parser stopped there is neither a network nor an engine.
    """

    def __init__(self, source: ModelSource, settings: Settings, gpu: Gpu, trt: Any) -> None:
        self.source = source
        self.settings = settings
        self.gpu = gpu
        self.trt = trt
        self.inputs: tuple[TensorSpec, ...] = ()
        self.outputs: tuple[TensorSpec, ...] = ()
        self.unsupported: Mapping[int, str] = {}
        self.names: Mapping[str, str] = {}
        self.how = ""
        self.data = b""
        self.outside: Mapping[str, Weight] = {}
        self.collectives: tuple[str, ...] = ()
        # Each needs the one before it. The parser keeps weights that the network points to, and
        # does not keep the network alive itself.
        self.builder: Any = None
        self.network: Any = None
        self.parser: Any = None
        self.config: Any = None
        self.profiles: list[Any] = []
        self.timing_cache: Any = None
        self.engine: Engine | None = None
        self.form: form.Form | None = None

    def close(self) -> None:
        """Free the network; an engine that no executable took is freed too."""
        with self.gpu:
            self.profiles.clear()
            self.timing_cache = None
            self.config = None
            self.parser = None
            self.network = None
            self.builder = None
        self.data, self.outside = b"", {}
        if self.engine is not None:
            self.engine.close()
            self.engine = None
