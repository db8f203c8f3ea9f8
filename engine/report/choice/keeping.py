"""Evidence in the compile cache and in this process, and all that it depends on.

In the cache it is an entry like others: of this user alone, held against its digest when it is
read. Models of any size have it, for it is small; encrypted ones have it in the process alone.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from engine.backends import find_target
from engine.backends.discovery import installed_points
from engine.formats.opened import OpenedSource
from engine.host import processor
from engine.host.cpus import usable_cpus
from engine.host.interrupts import pass_interrupt, raise_interrupt
from engine.host.version import __version__
from engine.plan import BuildOptions
from engine.report.choice.evidence import Evidence, Setup, read
from engine.report.choice.limits import BUDGET, ERROR
from engine.report.choice.setups import usable
from engine.types import CompileOptions, ModelSource
from engine.weights.compile_cache import CompileCache, Mode
from engine.weights.identity import key_of as compiled_key
from engine.weights.identity import sketch
from engine.weights.location import CacheUnusable

if TYPE_CHECKING:
    from engine.backends import Target
    from engine.backends.entry_points import EntryPoint
    from engine.context import AscendSettings, GpuSettings

FILE = "evidence.json"
CHOICE = "(choice)"
"""Stands for a backend's name in the key of an entry that is evidence."""

_ACCELERATORS = ("0x03", "0x12", "0x0b")
"""Classes of PCI devices: displays, of which GPUs are, processing accelerators and processors."""

_known: dict[str, Evidence] = {}
"""Evidence by its model and key, of this process."""

# Of [common_context]; the other keys there change nothing of a model's speed.
_COMMON = ("isolate", BUDGET, ERROR)


def key_of(
    source: ModelSource, options: BuildOptions, default: Setup, variable_weights: Sequence[str]
) -> dict[str, str]:
    """Return all that evidence depends on beside the model, as text by name."""
    context = options.context
    config = {name: dict(keys) for name, keys in options.config.items() if _counts(name)}
    common = options.config.get("common_context", {})
    key = {
        "backend": CHOICE,
        **circumstances(usable()),
        "default": str(default),
        "context": repr([context.cpu, _of_any_number(context.gpu), _of_any_number(context.ascend)]),
        "threads": repr(options.threads),
        "sections": json.dumps(config, sort_keys=True),
        "common": json.dumps({name: common[name] for name in _COMMON if name in common}),
        "variable weights": json.dumps([*variable_weights]),
        "accelerators": accelerators(),
    }
    if isinstance(source, OpenedSource) and source.passes:
        key["passes"] = ", ".join(source.passes)
    return key


def circumstances(backends: Sequence[str]) -> dict[str, str]:
    """Return the machine and the versions that speeds depend on, as text by name."""
    return {
        "core": __version__,
        "machine": f"{processor.features()}, {usable_cpus()} CPUs, {platform.system()}",
        **{f"backend {p.name}": _versions(p) for p in installed_points() if p.name in backends},
    }


def accelerators(bus: Path = Path("/sys/bus/pci/devices")) -> str:
    """Return the models of the GPUs and other accelerators on this machine's bus, sorted.

    So another one is noticed where the chosen target is a CPU, and no backend looks at devices.
    "" where the system does not tell.
    """
    found = []
    with suppress(OSError):
        for device in bus.iterdir():
            with suppress(OSError, ValueError):  # or what is no text
                if (device / "class").read_text()[:4] in _ACCELERATORS:
                    names = ("vendor", "device", "subsystem_device")
                    found.append(":".join((device / name).read_text().strip() for name in names))
    return ", ".join(sorted(found))


def devices(source: ModelSource, options: BuildOptions) -> dict[str, str]:
    """Return the kinds of the devices of all targets that are no CPU, as text by name.

    Raises BackendUnavailable for a device that is not there.
    """
    return {
        f"device {target.backend}": _kinds(source, target, options)
        for target in map(find_target, options.context.target)
        if target.device_type != "cpu"
    }


def _kinds(source: ModelSource, target: Target, options: BuildOptions) -> str:
    """Return the kinds of a target's devices: their names, and all that compiled forms depend on.

    That has the versions of the device's driver and runtime.
    """
    backend = options.opened(target.backend)
    asked = options.of(backend, target, source)
    kinds = []
    for device in asked.devices or (asked.device,):
        found = backend.present.get(device)
        kind = str(device) if found is None else found.name
        if backend.has("engine_compiled_key"):
            key = compiled_key(backend, CompileOptions(device=device))
            facts = ", ".join(f"{name} {text}" for name, text in sorted(key.items()) if text)
            kind += f" ({facts})"
        kinds.append(kind)
    return "; ".join(dict.fromkeys(kinds))


def _of_any_number(settings: GpuSettings | AscendSettings) -> GpuSettings | AscendSettings:
    """Return the settings of a device type without the device's number.

    The workers of several devices run parts of one request: they are to choose alike.
    """
    settings = copy(settings)
    settings.device_id = 0
    return settings


def _counts(section: str) -> bool:
    return section != "common_context" and not section.endswith("_extension")


def _versions(point: EntryPoint) -> str:
    """Return the versions of a backend's distribution and of those that it requires."""
    owner = point.owner()
    found = [f"{owner['distribution']} {owner['version']}"] if owner else [point.value]
    try:
        required = metadata.requires(owner.get("distribution", "")) or []
    except Exception as error:  # damaged metadata raise what they like
        pass_interrupt(error)
        required = []
    for text in required:
        matched = re.match(r"[\w.-]+", text)
        if matched is None:
            continue
        try:
            found.append(f"{matched[0]} {metadata.version(matched[0])}")
        except metadata.PackageNotFoundError as error:
            pass_interrupt(error)
    return ", ".join(found)


class Keeping:
    """The evidence of one model with one key."""

    def __init__(
        self, source: ModelSource, config: Mapping[str, Mapping[str, str]], key: Mapping[str, str]
    ) -> None:
        self._cache = CompileCache.of(config)
        self._cache.keeps_small = True
        self._key = key
        # A sketch alone looks at samples: models that differ in little would share evidence.
        self._sketch = sketch({**key, "content": _content(source)}, source)
        self._source = source if source.is_secret else self._cache.identified(source)
        self._lock = f"choice-{self._sketch[:32]}"
        self._is_on_disk = (
            self._cache.mode is not Mode.OFF
            and not source.is_secret
            and isinstance(self._source, OpenedSource)
            and bool(self._source.digest)
        )

    def find(self, holds: Callable[[Evidence], bool]) -> Evidence | None:
        """Return the evidence, of the cache if it is there; None for none that counts now.

        holds: returns whether evidence is of the devices that are there now.
        """
        found = self._cache.find(self._source, self._key, self._read) if self._is_on_disk else None
        now = time.time()
        for evidence in (found, _known.get(self._sketch)):
            if evidence is not None and evidence.counts_at(now) and holds(evidence):
                return evidence
        return None

    @contextmanager
    def turn(self, check: Callable[[], object]) -> Iterator[None]:
        """Keep other builds of this model from measuring meanwhile, in all that use the cache.

        check: called while another has its turn; may raise. Without a cache that can be written
        to there are no turns.
        """
        with ExitStack() as held:
            if self._is_on_disk:
                try:
                    held.enter_context(self._cache.store().locked(self._lock, check=check))
                except CacheUnusable as error:
                    raise_interrupt(error)
            yield

    def keep(self, evidence: Evidence) -> None:
        """Keep evidence for later builds, in this process and, where it may be, in the cache."""
        _known[self._sketch] = evidence
        if self._is_on_disk:
            text = json.dumps(evidence.to_json(), indent=1)
            self._cache.keep(self._source, self._key, lambda folder: _write(folder / FILE, text))

    def _read(self, folder: Path) -> Evidence:
        evidence = _read(folder)
        if evidence.key != self._key:
            raise ValueError("it is of another key")
        return evidence


def all_of(source: ModelSource, cache: CompileCache) -> list[Evidence]:
    """Return what the cache has of a model, the latest used first, whatever its key.

    Raises CacheUnusable.
    """
    cache.keeps_small = True
    identified = cache.identified(source)
    if not isinstance(identified, OpenedSource) or not identified.digest:
        return []
    found = [
        cache.find(identified, entry.identity.key, _read)
        for entry in cache.store().entries()
        if entry.identity.model == identified.digest and entry.identity.key["backend"] == CHOICE
    ]
    return [evidence for evidence in found if evidence is not None]


def _content(source: ModelSource) -> str:
    """Return a digest of all that is in memory of a model; `sketch` knows its files' versions."""
    digest = hashlib.sha256()
    are_mapped = isinstance(source, OpenedSource) and source.are_mapped
    files = () if are_mapped else source.files.values()
    for content in (source.data or b"", *files):
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _read(folder: Path) -> Evidence:
    return read((folder / FILE).read_bytes())


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
