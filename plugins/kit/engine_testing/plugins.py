"""Plugins made on the spot, as the core finds real ones: by the metadata of a distribution.

    install(folder, "fake", "my_fake_backend")
    with installed(folder):
        model = engine.load("m.onnx", target="fake")

For a child process put `folder` on PYTHONPATH. Nothing is copied and nothing of the environment
is written to; the plugins are gone with the folder.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from importlib_metadata import distributions

from engine.backends import GROUP, forget


def install(
    folder: Path,
    name: str,
    target: str,
    *,
    group: str = GROUP,
    version: str = "0.0.0",
    distribution: str = "",
    source: str | None = None,
) -> Path:
    """Write the metadata of a distribution that offers backend `name` into `folder`.

    target: what the entry point names, "module" or "module:object"; importable from `folder` or
        wherever the process looks. group: its entry-point group, another one for a plugin of
        another version of the contract.
    distribution: its name, "engine-plugin-<name>" if empty. Two of the same backend name are two
        distributions that fight for it.
    source: the text of the module, written into `folder` where it is not None.
    Returns the dist-info folder. Raises FileExistsError if that distribution is there already.
    """
    distribution = distribution or f"engine-plugin-{name.replace('_', '-')}"
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n", encoding="utf-8")
    if source is not None:
        module = target.partition(":")[0].replace(".", "/")
        (folder / f"{module}.py").write_text(source, encoding="utf-8")
    importlib.invalidate_caches()
    return info


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """Let this process find the plugins of `folder`, and nothing of them afterwards.

    Backends of these names that were opened in between are forgotten and modules that came from
    `folder` unloaded; models that were built keep working. Not for use by several threads.
    """
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        names = [
            point.name for dist in distributions(path=[str(folder)]) for point in dist.entry_points
        ]
        for name in names:
            forget(name)
        sys.path.remove(str(folder))
        importlib.invalidate_caches()
        inside = (f"{folder}{os.sep}", f"{folder.resolve()}{os.sep}")
        for key, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(inside):
                del sys.modules[key]
