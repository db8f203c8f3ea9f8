"""The weights of a compiled form: where each lies, and what models have in common, stored once.

A compiled form's weights are one file, in which each tensor has its values and what the kernels
made of them (packed). Forms of different models are in different files; so when a form is written,
each of its tensors is looked for in the files of those that were written before (weights_pool.py).
Weights there are not stored again: the graph names the other file instead, of which the form has a
hard link. All processes then map the same pages.

ONNX Runtime writes one tensor behind the other, large ones from the start of a page. Where kernels
would read one faster from elsewhere, the file is written anew. That takes a tenth of the first
build, so a file in which all is in place stays as it is.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from engine.model_bytes import Budget, changed, entry, fields, schema
from engine_cpu import weights_pool
from engine_cpu.known_issues import version
from engine_cpu.weights_pool import Place, Spans

# Kernels read weights where they are mapped, with instructions that end the process where these do
# not begin at a multiple of this (AVX-512). ONNX Runtime writes one behind the other.
_ALIGNED = 64
# A larger one begins in a page of its own, this many bytes behind the page's start: a MatMul of
# few rows takes 3 to 10% less than from the start (8 rows of 2048 on AMD Zen 5; from 64 and 192
# bytes it is in between). Weights in malloc's memory begin anywhere, so plain sessions have a mean.
_PAGE = 4096
_IN_PAGE = 128
# ONNX Runtime copies packed weights that do not begin a page, from this version on.
_PACKED_IN_PAGES = (1, 32)
_LARGE_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 18  # stays in the processor's cache
_FIELDS = 10_000_000
# The part of a tensor that goes into the table: enough to find one that may be equal.
_SAMPLE = 64


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a weights file.

    spans: offset and length of its values, then of what kernels packed. keys: of the packed
    parts, how many spans each has, and their checksums, as ONNX Runtime wrote them.
    """

    spans: Spans
    keys: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def of(cls, entries: dict[str, str]) -> Stored:
        """Read external_data as ONNX Runtime writes it; ValueError for another form."""
        spans = [(int(entries["offset"]), int(entries["length"]))]
        keys = []
        rest = {key: text for key, text in entries.items() if key not in _PLAIN}
        for number in range(len(rest)):
            # "<kernel>+<hash>|<offset>;<length>;<checksum>|..."
            key, *parts = rest[f"prepacked_{number}"].split("|")
            checksums = []
            for part in parts:
                offset, length, checksum = part.split(";")
                spans.append((int(offset), int(length)))
                checksums.append(checksum)
            keys.append((key, tuple(checksums)))
        return cls(tuple(spans), tuple(keys))

    def entries(self, location: str, spans: Spans) -> dict[str, str]:
        """Return external_data for the same tensor in another place."""
        texts = {"location": location, "offset": str(spans[0][0]), "length": str(spans[0][1])}
        place = 1
        for number, (key, checksums) in enumerate(self.keys):
            parts = [key]
            for checksum in checksums:
                offset, length = spans[place]
                parts.append(f"{offset};{length};{checksum}")
                place += 1
            texts[f"prepacked_{number}"] = "|".join(parts)
        return texts

    @property
    def is_in_place(self) -> bool:
        """True where kernels may read it from where it is, and would read it nowhere faster."""
        units = _units([length for _, length in self.spans])
        if len(self.spans) > 1:
            units[0] = (_ALIGNED, 0)  # only what was made of it is read
        return all(
            begin % unit == behind
            for (begin, _), (unit, behind) in zip(self.spans, units, strict=True)
        )

    def fingerprint(self, data: mmap.mmap) -> str:
        """Return what equal tensors have in common; others hardly ever have the same."""
        parts = [json.dumps(self.keys)]
        for offset, length in self.spans:
            step = max(1, length // _SAMPLE)
            parts += [str(length), data[offset : offset + length : step].hex()]
        return " ".join(parts)


_PLAIN = frozenset(("location", "offset", "length"))


def share(
    folder: Path,
    graph: str,
    weights: str,
    pool: Path | None,
    check: Callable[[], None] | None = None,
) -> None:
    """Move a form's weights to where they are read fastest; store in the pool what it lacks.

    Its tensors are replaced by links to it. folder: the form, which ONNX Runtime has written and
    nobody has opened yet; graph, weights: its files. pool: None for none. check: called while
    waiting for the pool; may raise. A form that cannot be read, or whose inner graphs have weights
    there, stays as it is.
    Raises OSError where it cannot be written, and is then not whole; ValueError for one that stays
    as it is, but has tensors that are not aligned.
    """
    path = folder / weights
    if not path.exists() or not path.stat().st_size:
        return
    model = (folder / graph).read_bytes()
    try:
        tensors = _tensors(model, weights)
        end = path.stat().st_size
        if any(not 0 <= o <= o + n <= end for stored in tensors.values() for o, n in stored.spans):
            raise ValueError(f"{weights} has {end:,} bytes, and tensors beyond")
    except (ValueError, KeyError) as error:
        if not _is_aligned(model):
            raise ValueError(f"{weights} has tensors that are not aligned: {error}") from error
        return
    found: dict[str, Place] = {}
    prints: dict[str, str] = {}
    if path.stat().st_size < weights_pool.LEAST_BYTES:
        pool = None
    with nullcontext(False) if pool is None else weights_pool.held(pool, check) as has_pool:
        if has_pool and pool is not None:
            with suppress(OSError):  # it shares nothing then
                weights_pool.clean(pool)
                with weights_pool.mapped(path) as data:
                    prints = {name: tensor.fingerprint(data) for name, tensor in tensors.items()}
                    wanted = {name: (text, tensors[name].spans) for name, text in prints.items()}
                    found = weights_pool.take(pool, folder, data, wanted)
        if found or not all(tensor.is_in_place for tensor in tensors.values()):
            tensors = _rewrite(folder, graph, weights, tensors, found)
        own = {prints[name]: tensors[name].spans for name in prints if name not in found}
        if own and pool is not None:
            with suppress(OSError):
                weights_pool.add(pool, path, own.items())


def _is_aligned(model: bytes) -> bool:
    """Return whether all external data of a model, also that of inner graphs, is aligned.

    Told from its texts, as ONNX Runtime writes them; names that look like these only cost time.
    """
    offsets = re.findall(rb"\x06offset\x12.(\d+)|\|(\d+);\d+;\d+", model, re.DOTALL)
    return all(int(raw or packed) % _ALIGNED == 0 for raw, packed in offsets)


# ----------------------------------------------------------------------------------- the graph


def _tensors(model: bytes, weights: str) -> dict[str, Stored]:
    """Return the initializers of the main graph that lie in the weights file, by name."""
    budget = Budget(_FIELDS)
    found = {}
    for _, graph in fields(memoryview(model), budget, {schema.MODEL_GRAPH}):
        for _, tensor in fields(graph, budget, {schema.GRAPH_INITIALIZER}):
            name, entries = _external(tensor, budget)
            if entries:
                if entries["location"] != weights:
                    raise ValueError(f"{name!r} lies in {entries['location']!r}")
                found[name] = Stored.of(entries)
    named = model.count(weights.encode())
    if named != len(found):
        raise ValueError(f"{named - len(found)} tensors of inner graphs lie in {weights!r}")
    return found


def _external(tensor: memoryview, budget: Budget) -> tuple[str, dict[str, str]]:
    name, entries = "", {}
    for key, payload in fields(tensor, budget, {schema.TENSOR_NAME, schema.TENSOR_EXTERNAL_DATA}):
        if key == schema.TENSOR_NAME:
            name = str(payload, "utf-8")
            continue
        pair = {part: str(text, "utf-8") for part, text in fields(payload, budget)}
        entries[pair[schema.STRING_STRING_ENTRY_KEY]] = pair[schema.STRING_STRING_ENTRY_VALUE]
    return name, entries


def _with_entries(model: bytes, entries: dict[str, dict[str, str]]) -> bytes:
    """Return the model with other external_data for the tensors of these names."""
    budget = Budget(_FIELDS)

    def tensor(view: memoryview) -> list[bytes | memoryview]:
        name, old = _external(view, budget)
        if not old:
            return [view]
        new = entries[name]
        kept = changed(view, {schema.TENSOR_EXTERNAL_DATA: lambda _: None}, budget)
        return [*kept, *(entry(schema.TENSOR_EXTERNAL_DATA, *pair) for pair in new.items())]

    def graph(view: memoryview) -> list[bytes | memoryview]:
        return changed(view, {schema.GRAPH_INITIALIZER: tensor}, budget)

    return b"".join(changed(memoryview(model), {schema.MODEL_GRAPH: graph}, budget))


# ------------------------------------------------------------------------------------ the files


def _rewrite(
    folder: Path,
    graph: str,
    weights: str,
    tensors: dict[str, Stored],
    found: Mapping[str, Place],
) -> dict[str, Stored]:
    """Write the form anew, without the tensors that were found; return its tensors."""
    own, new = folder / f"{weights}.new", folder / f"{graph}.new"
    entries, placed, moves = {}, {}, []
    end = 0
    for name, tensor in tensors.items():
        if name in found:
            place = found[name]
            placed[name] = Stored(place.spans, tensor.keys)
            entries[name] = tensor.entries(place.link, place.spans)
            continue
        spans = []
        units = _units([length for _, length in tensor.spans])
        for (offset, length), (unit, behind) in zip(tensor.spans, units, strict=True):
            begin = -(-end // unit) * unit + behind
            moves.append((offset, begin, length))
            spans.append((begin, length))
            end = begin + length
        placed[name] = Stored(tuple(spans), tensor.keys)
        entries[name] = tensor.entries(weights, tuple(spans))
    _move(folder / weights, own, moves)
    new.write_bytes(_with_entries((folder / graph).read_bytes(), entries))
    own.replace(folder / weights)
    new.replace(folder / graph)
    return placed


def _units(lengths: list[int]) -> list[tuple[int, int]]:
    """Return where a tensor's values are to begin, and then what kernels packed of it.

    Each is a number of bytes, and how many behind a multiple of that.
    """
    units = [(_PAGE, _IN_PAGE) if n >= _LARGE_BYTES else (_ALIGNED, 0) for n in lengths]
    if version() >= _PACKED_IN_PAGES:
        units[1:] = [(_PAGE, 0)] * len(units[1:])
    return units


def _move(source: Path, target: Path, moves: Iterable[tuple[int, int, int]]) -> None:
    """Write parts of a file to other places of a new one. moves: from, to, length.

    The last ones first, and cut off: pages that are given back are taken for the next ones. New
    ones are dear where a machine is virtual, and only half as much of the disk is taken.
    """
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with source.open("r+b", buffering=0) as old, target.open("xb", buffering=0) as new:
        for offset, begin, length in sorted(moves, reverse=True):
            new.seek(begin)
            old.seek(offset)
            left = length
            while left:
                count = old.readinto(buffer[:left])
                if not count:
                    raise OSError(f"{source}: {left:,} bytes from {offset:,} on are missing")
                _write_all(new, buffer[:count])
                left -= count
            old.truncate(offset)


def _write_all(file: FileIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]
