"""Weights in files that sessions map: which parts of them this process has in its memory.

A compiled form's file has each tensor's values, and what the kernels made of them; ONNX Runtime
maps the latter, and the former only where some kernel reads them. A page is mapped by as many
sessions as use it, and there once. So what a session takes is what its form names of a file and
the process has mapped, as the system says it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.model_bytes import Budget, fields, schema

_FIELDS = 10_000_000
_WANTED = {schema.TENSOR_RAW_DATA, schema.TENSOR_EXTERNAL_DATA}
_MAPS = "/proc/self/maps"

Spans = Sequence[tuple[int, int]]
"""Parts of a file: begin and end of each, in order, none touching the next."""


@dataclass(frozen=True, slots=True)
class Named:
    """Weights of a model as ONNX Runtime has written it.

    spans: the parts of its files that it names, by file. inside_bytes: of those in itself.
    """

    spans: Mapping[str, Spans]
    inside_bytes: int

    @classmethod
    def by(cls, model: bytes, sizes: Mapping[str, int]) -> Named:
        """Read a model. sizes: of its files.

        A file that a graph inside of a node names is taken as a whole. Raises ValueError for a
        model that cannot be read.
        """
        budget = Budget(_FIELDS)
        found: dict[str, list[tuple[int, int]]] = {name: [] for name in sizes}
        counts = dict.fromkeys(sizes, 0)
        inside_bytes = 0
        for _, graph in fields(memoryview(model), budget, {schema.MODEL_GRAPH}):
            for _, tensor in fields(graph, budget, {schema.GRAPH_INITIALIZER}):
                entries = {}
                for key, payload in fields(tensor, budget, _WANTED):
                    if key == schema.TENSOR_RAW_DATA:
                        inside_bytes += len(payload)
                        continue
                    name, value = (str(text, "utf-8") for _, text in fields(payload, budget))
                    entries[name] = value
                if (location := entries.pop("location", "")) in found:
                    counts[location] += 1
                    found[location] += _spans(entries)
        for name, size in sizes.items():
            if model.count(name.encode()) != counts[name]:
                found[name] = [(0, size)]
        return cls({name: merged(spans) for name, spans in found.items()}, inside_bytes)


def _spans(entries: Mapping[str, str]) -> Iterable[tuple[int, int]]:
    """Yield where a tensor's values lie, then where kernels' forms of them do."""
    offset = int(entries["offset"])
    yield offset, offset + int(entries["length"])
    for key, text in entries.items():
        if key.startswith("prepacked_"):  # "<kernel>+<hash>|<offset>;<length>;<checksum>|..."
            for part in text.split("|")[1:]:
                begin, length, _ = part.split(";")
                yield int(begin), int(begin) + int(length)


def merged(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return the same parts in order, with those in one that touch."""
    result: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((begin, end))
    return result


# Not a WeakSet: its own callback is Python, and what a signal handler raises in such is lost.
_alive: set[weakref.ref[MappedWeights]] = set()


class MappedWeights:
    """The files' parts that one executable uses, for as long as it lives. Any thread may ask.

    folder: the form, as it is now; it may be renamed or removed later.
    """

    def __init__(self, folder: Path, named: Named) -> None:
        files: dict[tuple[int, int], Spans] = {}
        for name, parts in named.spans.items():
            status = os.stat(folder / name)
            identity = status.st_dev, status.st_ino  # one file may have several names
            files[identity] = merged([*files.get(identity, ()), *parts])
        self._files = files
        _alive.add(weakref.ref(self, _alive.discard))

    def measure(self) -> tuple[int, int]:
        """Return how many bytes other executables of this process use too, and the rest."""
        others = [other for other in (alive() for alive in list(_alive)) if other]
        maps = _mapped_now()
        shared = alone = 0
        for identity, spans in self._files.items():
            used = _mapped_part(maps, identity, spans)
            theirs = merged(
                span
                for other in others
                if other is not self
                for span in other._files.get(identity, ())
            )
            both = _size(_common(used, theirs))
            shared += both
            alone += _size(used) - both
        return shared, alone

    def close(self) -> None:
        """Use nothing any more; twice does nothing."""
        self._files = {}


def _mapped_now() -> dict[int, Spans]:
    """Return the parts of files that this process has mapped, by inode; {} where nothing tells."""
    found: dict[int, list[tuple[int, int]]] = {}
    try:
        with open(_MAPS, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                # "<begin>-<end> <rights> <offset> <device> <inode> <path>"
                place, _, offset, _, inode, *path = line.split(maxsplit=5)
                if path and ".bin" in path[0]:
                    begin, end = (int(text, 16) for text in place.split("-"))
                    start = int(offset, 16)
                    found.setdefault(int(inode), []).append((start, start + end - begin))
    except OSError:
        return {}
    return {inode: merged(spans) for inode, spans in found.items()}


def _mapped_part(maps: Mapping[int, Spans], identity: tuple[int, int], spans: Spans) -> Spans:
    """Return what of `spans` is mapped; all where the system does not say it of this file.

    The device is not compared: file systems made of others have one for `stat` and one here.
    """
    mapped = maps.get(identity[1])
    return spans if mapped is None else _common(spans, mapped)


def _common(some: Spans, others: Spans) -> Spans:
    """Return the parts that are in both."""
    result = []
    position = 0
    for begin, end in some:
        while position < len(others) and others[position][1] <= begin:
            position += 1
        for other_begin, other_end in others[position:]:
            if other_begin >= end:
                break
            result.append((max(begin, other_begin), min(end, other_end)))
    return result


def _size(spans: Spans) -> int:
    return sum(end - begin for begin, end in spans)
