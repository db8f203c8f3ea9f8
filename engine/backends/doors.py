"""The doors: the groups of entry points by which distributions add to the engine.

    [project.entry-points."engine.formats.v1"]
    mine = "my_package:MyFormat"

A group has the version of its contract in its name, so that a misfit is known before anything is
imported. Only names are read until somebody asks for an object; an entry that fails then is a
record that says why, and stops no other one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from engine.backends.entry_points import EntryPoint, entry_points
from engine.backends.records import BackendState, PluginRecord
from engine.errors import one_line, shortened
from engine.host.interrupts import pass_interrupt

_PREFIX = "engine."


class Door(NamedTuple):
    """One group.

    kind: of what it offers, in messages and lists. members: those that an object of it must have.
    extra: of this distribution, without which its objects cannot be imported; "" for none.
    """

    kind: str
    group: str
    members: tuple[str, ...] = ()
    extra: str = ""

    @property
    def any_version(self) -> str:
        """The beginning that the groups of all its versions have."""
        return self.group.rstrip("0123456789")


BACKENDS = Door("backend", "engine.backends.v1")
FORMATS = Door("format", "engine.formats.v1", ("recognises", "open"))
SOURCES = Door("source", "engine.sources.v1", ("title", "read"))
PASSES = Door("pass", "engine.passes.v1", ("version", "rewrite"))
COMMANDS = Door("command", "engine.commands.v1", ("make_context", "invoke"))
TRANSPORTS = Door("transport", "engine.transports.v1", ("join",))
EXTENSIONS = Door("extension", "engine.extensions.v1", ("__call__",))
CONFORMANCE = Door("conformance", "engine.conformance.v1", ("backend",), extra="testing")
DOORS = (BACKENDS, FORMATS, SOURCES, PASSES, COMMANDS, TRANSPORTS, EXTENSIONS, CONFORMANCE)
WINGS = Door("wing", "engine.wings.v1")  # the core's own parts, see engine.wings: no plugins


def points(door: Door) -> tuple[EntryPoint, ...]:
    """Return the entries of a door that are installed for its version."""
    return tuple(point for point in _of_all_versions(door) if point.group == door.group)


def names(door: Door) -> tuple[str, ...]:
    """Return the names of the entries that are installed for a door's version, sorted."""
    return tuple(sorted({point.name for point in points(door)}))


def known(door: Door) -> list[str]:
    """Return the names of the installed entries, of this version or another, sorted."""
    return sorted({point.name for point in _of_all_versions(door)})


def points_of(name: str, found: Iterable[EntryPoint]) -> list[EntryPoint]:
    """Return those of that name; of a distribution that is found twice, the first on the path."""
    named: dict[tuple[str, str], EntryPoint] = {}
    for point in found:
        if point.name == name:
            named.setdefault((point.group, point.owner().get("distribution", "")), point)
    return list(named.values())


def resolve(
    door: Door, name: str, found: Iterable[EntryPoint] | None = None
) -> tuple[PluginRecord, Any]:
    """Decide an entry's state, and give its object where that is READY; never raises.

    In place of an object that cannot be imported it gives the exception, for `raise ... from`.
    found: the door's entries, of one that has looked already; None to look for them.
    """
    named = points_of(name, points(door) if found is None else found)
    if not named:
        return absent(door, name), None
    if len(named) > 1:
        owners = ", ".join(sorted(point.owner().get("distribution", "?") for point in named))
        reason = f"several distributions offer it: {owners}"
        return broken(door, name, reason, "uninstall all but one", named[0]), None
    point = named[0]
    try:
        thing = point.load()
    except BaseException as error:  # SystemExit, or a panic of a compiled extension
        pass_interrupt(error)
        if door.extra and isinstance(error, ModuleNotFoundError):
            return _without_extra(door, point, error.name or ""), error
        if newer := newer_contract(door, point, error):
            return newer, error
        reason = f"importing {point.value!r} failed: {one_line(error)}"
        return broken(door, name, reason, point=point), error
    if lacking := [member for member in door.members if not hasattr(thing, member)]:
        reason = f"{point.value!r} cannot serve as {door.kind}: it has no {', '.join(lacking)}"
        return broken(door, name, reason, point=point), None
    return _record(door.kind, name, BackendState.READY, point), thing


def broken(
    door: Door, name: str, reason: str, fix: str = "", point: EntryPoint | None = None
) -> PluginRecord:
    """Return the record of an entry that cannot be used. point: the entry, where it is known."""
    if not fix and door is BACKENDS:
        fix = f"run: engine doctor {name}"
    elif not fix:
        owner = point.owner() if point is not None else {}
        fix = f"update or uninstall {owner.get('distribution', 'the package that offers it')}"
    return _record(door.kind, name, BackendState.BROKEN, point, reason, fix)


def crashed(door: Door, name: str, reason: str) -> PluginRecord:
    """Return the record of an entry whose probe, in a process of its own, did not come back."""
    return broken(door, name, reason, point=next(iter(points_of(name, points(door))), None))


def absent(door: Door, name: str) -> PluginRecord:
    """Return the record of an entry that no installed distribution offers for a door's version."""
    others = points_of(name, _of_all_versions(door))
    if others:
        return _incompatible(door.kind, others[0], f"this core {door.group!r}")
    here = ", ".join(names(door)) or "none"
    reason = f"no installed distribution offers it (installed: {here})"
    fix = "install the distribution that offers it, or correct the name"
    return _record(door.kind, name, BackendState.NOT_INSTALLED, None, reason, fix)


def _incompatible(kind: str, point: EntryPoint, wanted: str) -> PluginRecord:
    reason = f"it speaks contract {point.group!r}, {wanted}"
    package = point.owner().get("distribution", point.name)
    fix = f"install a version of {package} made for this core"
    return _record(kind, point.name, BackendState.INCOMPATIBLE, point, reason, fix)


def newer_contract(door: Door, point: EntryPoint, error: BaseException) -> PluginRecord | None:
    """Return the record of an entry that failed so because it needs a newer core; else None."""
    from engine.backends.level import lacking  # rare

    reason = lacking(error)
    if not reason:
        return None
    fix = "run: pip install -U inference-engine"
    return _record(door.kind, point.name, BackendState.INCOMPATIBLE, point, reason, fix)


def _without_extra(door: Door, point: EntryPoint, module: str) -> PluginRecord:
    from engine.backends.install import pip_install  # rare

    reason = f"it needs {module!r}, which is not installed"
    fix = f"run: {pip_install(door.extra)}"
    return _record(door.kind, point.name, BackendState.NOT_INSTALLED, point, reason, fix)


def _record(
    kind: str,
    name: str,
    state: BackendState,
    point: EntryPoint | None,
    reason: str = "",
    fix: str = "",
) -> PluginRecord:
    owner: Mapping[str, Any] = {} if point is None else point.owner()
    return PluginRecord(kind=kind, name=name, state=state, reason=reason, fix=fix, **owner)


def installed_entries() -> tuple[list[tuple[Door, str]], list[PluginRecord]]:
    """Return the entries of all doors, by door and name, and those of groups that are no door."""
    entries: dict[tuple[Door, str], None] = {}
    strays: dict[tuple[str, str], PluginRecord] = {}
    for point in entry_points(_PREFIX, warn_once):
        door = next((door for door in DOORS if _is_version_of(door, point.group)), None)
        if door is not None:
            entries[door, point.name] = None
        elif not _is_version_of(WINGS, point.group):
            strays.setdefault((point.group, point.name), _stray(point))
    order = [door.kind for door in DOORS]
    ordered = sorted(entries, key=lambda entry: (order.index(entry[0].kind), entry[1]))
    return ordered, list(strays.values())


def _stray(point: EntryPoint) -> PluginRecord:
    from engine.config.text import did_you_mean  # rare

    hint = did_you_mean(point.group, [door.group for door in DOORS], "; ")
    return _incompatible(point.group, point, f"which is no group of this core{hint}")


def _of_all_versions(door: Door) -> Iterator[EntryPoint]:
    # Somebody's damaged metadata must not hide the others.
    for point in entry_points(door.any_version, warn_once):
        if _is_version_of(door, point.group):
            yield point


def _is_version_of(door: Door, group: str) -> bool:
    return group.startswith(door.any_version)


_warned: set[str] = set()


def warn_once(text: str) -> None:
    """Log a warning, unless this process has logged the same one before."""
    if text not in _warned:
        _warned.add(text)
        import logging  # rare

        logging.getLogger("engine").warning("%s", shortened(text))
