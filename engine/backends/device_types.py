"""The backends that serve a device type: they are asked, since names alone do not say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.backends.discovery import error_of, installed, open_backend, open_backends, resolve
from engine.backends.names import OFFICIAL, OWN, Target
from engine.backends.records import BackendRecord
from engine.errors import BackendError, BackendUnavailable


def is_served(text: str) -> bool:
    """Return whether a backend that somebody else installed serves `text` as a device type.

    Asks each of them, in a process of its own: for what is no target otherwise.
    """
    names = [name for name in installed() if name not in OWN]
    kind, _, provider = text.lower().partition(":")
    return any(_serves(found, kind, provider) for found in _ask(names).values())


def find_serving(text: str, names: Mapping[str, str]) -> Target:
    """Return the backend that serves a target which is not just a backend's name.

    names: the installed backends', in lower case, each with its spelling. See `find_target`.
    """
    kind, _, provider = text.lower().partition(":")
    asked: dict[str, BackendRecord] = {}
    for name in (kind, OFFICIAL.get(kind, ""), provider):
        if name in names:
            found = asked[names[name]] = resolve(names[name], look_for_devices=False)[0]
            if _serves(found, kind, provider):
                return _target(found, kind, provider)
    asked |= _ask([name for name in names.values() if name not in asked])
    serving = [found for _, found in sorted(asked.items()) if _serves(found, kind, "")]
    fitting = [found for found in serving if _serves(found, kind, provider)]
    if lacking := {found.name: why for found in fitting if (why := _lacks_devices(found, kind))}:
        having = [found for found in fitting if found.name not in lacking]
        if not having and kind in OFFICIAL:  # this project's own backend is what helps
            raise _unserved(text, kind, asked, list(lacking.values()))
        fitting = having or fitting
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
    number = f", or target {kind!r} with device_id={provider}" if provider.isdecimal() else ""
    raise BackendUnavailable(f"target {text!r} {problem}; choose one of: {choices}{number}", text)


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
        from engine.backends.wings import load  # rare

        found += load("probe_all")(elsewhere)
    return {record.name: record for record in found}


def _lacks_devices(found: BackendRecord, kind: str) -> str:
    """Return why a backend of several device types does not serve one that it announces.

    "" where it does, and for one of a single type: that it has none of it is then its own error.
    """
    assert found.info is not None
    if len(found.info.device_types) < 2 or kind not in found.info.device_types:
        return ""
    try:
        backend = open_backend(found.name)
    except BackendError:
        return ""  # opening it says so better
    if any(device.type == kind for device in backend.present):
        return ""
    has = ", ".join(map(str, backend.present)) or "none"
    return f"backend {found.name!r} announces {kind!r} and has no such device (it has: {has})"


def _unserved(
    text: str, kind: str, asked: Mapping[str, BackendRecord], lacking: Sequence[str] = ()
) -> Exception:
    official = OFFICIAL.get(kind, kind)
    if official in asked:
        return error_of(asked[official])
    from engine.backends.advice import absent_record  # rare

    absent = absent_record(official, kind if kind in OFFICIAL else "", text)
    if lacking:
        absent = replace(absent, reason="; ".join([absent.reason, *lacking]))
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
