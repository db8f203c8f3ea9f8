"""From an element of `context.target` to the backend that serves it, and its device type."""

from __future__ import annotations

from engine.backends.backend import Backend
from engine.backends.discovery import installed, installed_points, open_backend, open_backends
from engine.backends.names import EXTRAS, Target


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
    points = installed_points()
    names = {name.lower(): name for name in sorted({point.name for point in points})}
    if kind in names and not provider:
        return _of_name(open_backend(names[kind], points), kind)
    from engine.backends.device_types import find_serving  # rare

    return find_serving(text, names)


def _of_name(backend: Backend, name: str) -> Target:
    """Return the target that a backend's name alone stands for."""
    kind = name if name in backend.info.device_types else backend.device_type
    return Target(backend.name, kind)
