"""The user's settings: what they mean to this backend, and which mistakes in them are named.

They are in section [gpu_context] (MindSpore Lite's own) and, over it, [gpu_trt_context]. Shapes
are not among them: the core reads those, and gives them as `CompileOptions.shapes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from engine.options import parsed
from engine.types import CompileOptions, Option
from engine_gpu_trt.vendor import PACKAGES

PROVIDERS = tuple(PACKAGES)
_PRECISIONS = ("enforce_fp32", "preferred_fp16")
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

OPTIONS: Mapping[str, Option] = {
    "precision_mode": Option(
        text="the precision to compute in; wins over context.gpu's",
        choices=_PRECISIONS,
        default="enforce_fp32",
    ),
    "batch_range": Option(
        text="lowest~usual~highest of an open axis 0 that nothing else fixes", default="1~1~32"
    ),
    "dim_range": Option(
        text="lowest~usual~highest of an open axis that is not the first", default="1~64~512"
    ),
    "workspace_bytes": Option(
        text="the most scratch memory a layer may use: 64MiB, 2GiB; default: all of the device"
    ),
    "optimization_level": Option(
        text="how long TensorRT searches for fast kernels", type=int, lowest=0, highest=5,
        default="3",
    ),
    "tf32": Option(
        text="let float32 products round to TensorFloat-32's 10 bits", type=bool, default="false"
    ),
    "cuda_graphs": Option(
        text="record executions as CUDA graphs; for small models of few shapes", type=bool,
        default="false",
    ),
    "in_graph_collectives": Option(
        text="run the collectives of a sliced model's part inside TensorRT's engine, where it can; "
        "the same on every rank",
        type=bool, default="false",
    ),
    "layer_profile": Option(
        text="a file that gets the time of each layer, as JSON, when the model is closed"
    ),
    "concurrency": Option(
        text="predicts at once, each with activations of its own; 0 for any number", type=int,
        lowest=0, highest=64, default="2",
    ),
}  # fmt: skip

Range: TypeAlias = tuple[int, int, int]
"""Lowest, usual and highest size of one axis."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of OPTIONS, read and checked.

    cuda_graphs, layer_profile, concurrency: of running, so no engine depends on them.
    concurrency: 2, because one predict's kernels keep a GPU busy while another's inputs and
    outputs cross the bus; a third waits for one of these, and costs its activations.
    """

    fp16: bool = False
    tf32: bool = False
    provider: str = PROVIDERS[0]
    workspace_bytes: int | None = None
    optimization_level: int = 3
    concurrency: int = 2
    cuda_graphs: bool = False
    in_graph_collectives: bool = False
    layer_profile: str = ""
    batch_range: Range = (1, 1, 32)
    dim_range: Range = (1, 64, 512)

    def key(self) -> Mapping[str, str]:
        """Give what a compiled engine depends on, as text by name."""
        return {
            "precision": _PRECISIONS[self.fp16],
            "tf32": str(self.tf32).lower(),
            "in_graph_collectives": str(self.in_graph_collectives).lower(),
            "workspace_bytes": str(self.workspace_bytes or ""),
            "optimization_level": str(self.optimization_level),
            "batch_range": "~".join(map(str, self.batch_range)),
            "dim_range": "~".join(map(str, self.dim_range)),
        }


def read_settings(options: CompileOptions) -> Settings:
    """Read the settings of one compile; ValueError naming the key and what it takes."""
    values = parsed(options.options, OPTIONS)
    if options.provider not in ("", *PROVIDERS):
        raise ValueError(
            f"provider of gpu_trt must be in {list(PROVIDERS)} or '', but got {options.provider!r}"
        )
    precision = options.precision
    if options.options.get("precision_mode", "").strip() or not precision:
        precision = values["precision_mode"]
    if precision not in _PRECISIONS:
        raise ValueError(
            f"gpu_precision_mode must be in [{', '.join(_PRECISIONS)}], but got {precision}."
        )
    if values["cuda_graphs"] and values["layer_profile"]:
        raise ValueError("cuda_graphs and layer_profile exclude each other; set one of them")
    if values["cuda_graphs"] and values["in_graph_collectives"]:
        raise ValueError("cuda_graphs and in_graph_collectives exclude each other; set one of them")
    return Settings(
        fp16=precision == "preferred_fp16",
        tf32=values["tf32"],
        provider=options.provider or PROVIDERS[0],
        workspace_bytes=_size("workspace_bytes", values["workspace_bytes"]),
        optimization_level=values["optimization_level"],
        cuda_graphs=values["cuda_graphs"],
        in_graph_collectives=values["in_graph_collectives"],
        layer_profile=values["layer_profile"],
        concurrency=values["concurrency"],
        batch_range=_range("batch_range", values["batch_range"]),
        dim_range=_range("dim_range", values["dim_range"]),
    )


def _range(key: str, text: str) -> Range:
    parts = text.split("~")
    if len(parts) not in (2, 3):
        raise ValueError(f"{key} must be 'lowest~usual~highest', but got {text!r}")
    numbers = [_number(key, part) for part in parts]
    sizes = (numbers[0], numbers[len(numbers) // 2], numbers[-1])
    if sorted(sizes) != list(sizes):
        raise ValueError(f"{key} must rise from lowest to highest, but got {text!r}")
    return sizes


def _number(key: str, text: str) -> int:
    if not re.fullmatch(r"\s*\d{1,10}\s*", text):
        raise ValueError(f"{key}: expected a whole number of at least 0, but got {text!r}")
    if int(text) >= 2**31:  # TensorRT's dims have 64 bits, its strides and extents 31
        raise ValueError(f"{key}: {text.strip()} is more than {2**31 - 1}")
    return int(text)


def _size(key: str, text: str) -> int | None:
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,18})\s*(KiB|MiB|GiB|)", text)
    if match is None:
        raise ValueError(f"{key} must be a size in bytes, '64MiB' or '2GiB', but got {text!r}")
    return int(match[1]) * _UNITS[match[2]]
