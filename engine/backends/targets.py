"""From an element of `context.target` to the backend that serves it, and its device type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.backends.backend import Backend
from engine.backends.discovery import (
    EXTRAS,
    OFFICIAL,
    absent_record,
    error_of,
    installed,
    open_backend,
    open_backends,
    resolve,
)
from engine.backends.records import BackendRecord
from engine.errors import BackendUnavailable


@dataclass(frozen=True, slots=True)
class Target:
    """One element of `context.target` resolved: a backend, the device type and its provider."""

    backend: str
    device_type: str
    provider: str = ""


def is_target(text: str) -> bool:
    """Return whether `text` may stand in `context.target`: a device type or a backend here."""
    name = text.lower().partition(":")[0]
    return name in EXTRAS or name in {known.lower() for known in installed()}


def find_target(text: str) -> Target:
    """Return the backend that serves a target.

    text: a backend's name, a device type, "type:provider", or "name:" with one of the backend's
        device types or providers. The name alone stands for its first device type of which there
        is a device. A provider may also be the backend's name.

    A backend's own name goes first, then this project's own backend of a device type; neither
    imports any other. Only where these do not serve it is every installed backend asked what it
    serves, other people's in processes of their own, because nobody named them and one may crash;
    several that serve it are an error that lists them. Raises BackendError.
    """
    kind, _, provider = text.lower().partition(":")
    opened = open_backends.get(kind)
    if opened is not None and not provider:  # a scan of what is installed costs milliseconds
        return _of_name(opened, kind)
    names = {name.lower(): name for name in installed()}
    if kind in names and not provider:
        return _of_name(open_backend(names[kind]), kind)
    asked: dict[str, BackendRecord] = {}
    for name in (kind, OFFICIAL.get(kind, ""), provider):
        if name in names:
            found = asked[names[name]] = resolve(names[name], look_for_devices=False)[0]
            if _serves(found, kind, provider):
                return _target(found, kind, provider)
    asked |= _ask([name for name in names.values() if name not in asked])
    serving = [found for _, found in sorted(asked.items()) if _serves(found, kind, "")]
    fitting = [found for found in serving if _serves(found, kind, provider)]
    if len(fitting) == 1:
        return _target(fitting[0], kind, provider)
    if not serving:
        raise _unserved(text, kind, asked)
    choices = ", ".join(f"{kind}:{choice}" for found in serving for choice in _choices(found, kind))
    problem = (
        f"is served by several backends ({', '.join(found.name for found in fitting)})"
        if fitting
        else f"names a provider {provider!r} that is not there"
    )
    raise BackendUnavailable(f"target {text!r} {problem}; choose one of: {choices}", text)


def _of_name(backend: Backend, name: str) -> Target:
    """Return the target that a backend's name alone stands for."""
    kind = name if name in backend.info.device_types else backend.device_type
    return Target(backend.name, kind)


def _choices(found: BackendRecord, kind: str) -> tuple[str, ...]:
    """Return what may stand behind "kind:" for this backend."""
    assert found.info is not None
    types = found.info.device_types if kind == found.name.lower() else ()
    several = types if len(types) > 1 else ()
    return (*several, *found.info.providers) or (found.name,)


def _ask(names: Sequence[str]) -> dict[str, BackendRecord]:
    here = [name for name in names if name in open_backends or name in OFFICIAL.values()]
    elsewhere = [name for name in names if name not in here]
    found = [resolve(name, look_for_devices=False)[0] for name in here]
    if elsewhere:
        from engine.backends.probe import probe_all  # rare

        found += probe_all(elsewhere)
    return {record.name: record for record in found}


def _unserved(text: str, kind: str, asked: Mapping[str, BackendRecord]) -> Exception:
    official = OFFICIAL.get(kind, kind)
    if official in asked:
        return error_of(asked[official])
    absent = absent_record(official, kind if kind in OFFICIAL else "", text)
    silent = [f"{name!r} {found.reason}" for name, found in asked.items() if found.info is None]
    if silent:
        absent = replace(absent, reason=f"{absent.reason}; not known of {'; '.join(silent)}")
    return error_of(absent)


def _serves(found: BackendRecord, kind: str, provider: str) -> bool:
    if found.info is None:
        return False
    name, types = found.name.lower(), found.info.device_types
    suffixes = {"", name, *map(str.lower, found.info.providers)}
    if kind == name:
        suffixes |= {*types}
    return kind in (name, *types) and provider in suffixes


def _target(found: BackendRecord, kind: str, provider: str) -> Target:
    assert found.info is not None
    types = found.info.device_types
    if kind not in types:  # the backend's name: what follows it may be one of its device types
        if provider in types:
            return Target(found.name, provider)
        kind = open_backend(found.name).device_type if len(types) > 1 else types[0]
    spelt = {text.lower(): text for text in found.info.providers}
    # Its own name is no provider of it, unless it has one of that name.
    return Target(found.name, kind, spelt.get(provider, ""))
