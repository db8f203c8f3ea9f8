"""The class of tests for a backend: the one that its distribution ships, else the plain kit.

A backend that sets attributes of the kit (`rtol`, `option`, `gaps`, ...) ships its class as a
module of its package and names it beside the backend, under the same name:

    [project.entry-points."engine.conformance.v1"]
    mine = "my_package.conformance:TestMine"

`engine plugins check mine` then runs that class, and the distribution's own tests import it.
"""

from __future__ import annotations

import pytest

from engine.backends import doors
from engine_testing import BackendConformance

GROUP = doors.CONFORMANCE.group


def conformance_class(backend: str) -> type[BackendConformance]:
    """Return the class to test an installed backend with.

    Raises TypeError where what its distribution names is none.
    """
    points = [point for point in doors.points(doors.CONFORMANCE) if point.name == backend]
    if not points:
        return type("TestBackend", (BackendConformance,), {"backend": backend})
    values = sorted({point.value for point in points})
    if len(values) > 1:
        raise TypeError(f"{backend!r} is in {GROUP!r} several times: {', '.join(values)}")
    pytest.register_assert_rewrite(
        points[0].value.partition(":")[0]
    )  # so that a failed assert shows its values
    found = points[0].load()
    if not (isinstance(found, type) and issubclass(found, BackendConformance)):
        raise TypeError(f"expected a subclass of BackendConformance, got {found!r}")
    if found.backend != backend:
        raise TypeError(f"expected {found.__name__}.backend to be {backend!r}, "
                        f"got {found.backend!r}")  # fmt: skip
    return found
