"""External data that lies where it must not, or is not what the model says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from engine_testing.encode import (
    attribute,
    chain,
    field,
    function,
    graph,
    ints,
    model,
    node,
    tensor,
    value,
)
from hostile.graphs import ADD, NEG, branch, with_tensor
from hostile.registry import CASES, case


def _external(
    name: str,
    prepare: Callable[[Path], object],
    dims: Iterable[int] = (4,),
    wrap: Callable[[bytes], bytes] = with_tensor,
    **entries: str,
) -> None:
    """Add a case of a model whose tensor "w" lies outside it, as `entries` say."""

    def write(folder: Path) -> Path:
        inner = folder / "model"
        inner.mkdir()
        (folder / "secret.bin").write_bytes(bytes(64))
        prepare(inner)
        path = inner / "model.onnx"
        found = {k: v.replace("FOLDER", str(folder)) for k, v in entries.items()}
        path.write_bytes(wrap(tensor("w", dims, external=found)))
        return path

    CASES.append((name, write))


def _data(folder: Path) -> None:
    (folder / "w.bin").write_bytes(bytes(16))


def _nothing(_: Path) -> None: ...


_external("external_absolute", _nothing, location="FOLDER/secret.bin")
_external("external_parent", _nothing, location="../secret.bin")
_external("external_parent_inside", _data, location="deeper/../w.bin")
_external("external_backslash", _data, location="..\\secret.bin")
_external("external_nul", _data, location="w.bin\0.txt")
_external("external_nowhere", _data, location="")
_external("external_no_entry", _data)
_external(
    "external_link_out", lambda f: (f / "w.bin").symlink_to("../secret.bin"), location="w.bin"
)
_external(
    "external_folder_link_out", lambda f: (f / "up").symlink_to(".."), location="up/secret.bin"
)
_external(
    "external_link_to_device", lambda f: (f / "w.bin").symlink_to("/dev/zero"), location="w.bin"
)
_external(
    "external_dangling_link", lambda f: (f / "w.bin").symlink_to("gone.bin"), location="w.bin"
)
_external("external_link_to_itself", lambda f: (f / "w.bin").symlink_to("w.bin"), location="w.bin")
_external("external_missing", _nothing, location="w.bin")
_external("external_folder", lambda f: (f / "w.bin").mkdir(), location="w.bin")
_external("external_pipe", lambda f: os.mkfifo(f / "w.bin"), location="w.bin")
_external("external_too_short", _data, dims=[1000], location="w.bin")
_external("external_billions", _data, dims=[1 << 31, 4], location="w.bin")
_external("external_offset_past_end", _data, location="w.bin", offset="8", length="16")
_external("external_offset_negative", _data, location="w.bin", offset="-16")
_external("external_offset_huge", _data, location="w.bin", offset="9" * 30)
_external("external_length_differs", _data, location="w.bin", length="8")
_external(
    "external_prepacked", _data, location="w.bin", prepacked_0="MatMul+0123456789abcdef|0;16;0"
)
_external("external_basepath", _data, location="w.bin", basepath="..")
_external("external_entries", _data, location="w.bin", a="", b="", c="", d="")
_external("external_memory_address", _data, location="*/_ORT_MEM_ADDR_/*", offset="4096")
_external(
    "external_in_attribute", _nothing, location="../secret.bin",
    wrap=lambda w: chain(node("Constant", [], ["c"], [attribute("value", 5, w, 4)]), node(*NEG)),
)  # fmt: skip
_external(
    "external_in_attribute_list", _nothing, location="../secret.bin",
    wrap=lambda w: chain(node("Neg", ["x"], ["y"], [attribute("values", 10, w, 9)])),
)  # fmt: skip
_external(
    "external_in_subgraph", _nothing, location="../secret.bin",
    wrap=lambda w: chain(
        node("If", ["x"], ["y"], [branch(node("Neg", ["w"], ["z"]), initializers=[w])])
    ),
)  # fmt: skip
_external(
    "external_in_function", _nothing, location="../secret.bin",
    wrap=lambda w: chain(
        node(*NEG),
        extra=field(
            25,
            function("f", [node("Constant", [], ["b"], [attribute("value", 5, w, 4)])], [], ["b"]),
        ),
    ),
)  # fmt: skip
_external(
    "external_in_sparse_values", _nothing, dims=[1], location="../secret.bin",
    wrap=lambda w: model(
        graph(
            [node(*ADD)], [value("x")], [value("y")],
            extra=field(15, field(1, w) + field(2, ints("", 0)) + field(3, 4)),
        )
    ),
)  # fmt: skip


@case
def external_location_twice(folder: Path) -> Path:
    """Two locations: readers differ in which they take."""
    _data(folder)
    twice = field(13, field(1, "location") + field(2, "../secret.bin"))
    body = tensor("w", [4], external={"location": "w.bin"}, extra=twice)
    (folder / "model.onnx").write_bytes(with_tensor(body))
    return folder / "model.onnx"
