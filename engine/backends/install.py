"""The command that installs what is missing: another one in a checkout than for a release."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]

# The plugin that a checkout has for an extra, and the extra of its own that it takes.
_PLUGINS = {"cpu": "cpu", "gpu-trt": "gpu_trt[runtime]", "ascend-ge": "ascend_ge", "testing": "kit"}


def pip_install(extra: str = "", root: Path = _ROOT) -> str:
    """Return the command that installs an extra of this distribution; "" for itself, anew.

    root: the folder above the package. In a checkout the plugins lie there, as far as they belong
    to it: an extra cannot find a sibling folder.
    """
    if not extra:
        is_checkout = (root / "pyproject.toml").is_file()
        what = f'-e "{_near(root)}"' if is_checkout else "--force-reinstall inference-engine"
        return f"pip install {what}"
    plugin = _PLUGINS.get(extra, "")
    folder = root / "plugins" / plugin.partition("[")[0]
    if plugin and (folder / "pyproject.toml").is_file():
        return f'pip install -e "{_near(root / "plugins" / plugin)}"'
    return f'pip install "inference-engine[{extra}]"'


def pip_install_plugin(name: str) -> str:
    """Return the command that installs a plugin of this project by itself."""
    folder = _ROOT / "plugins" / name
    if (folder / "pyproject.toml").is_file():
        return f'pip install -e "{_near(folder)}"'
    return f"pip install inference-engine-{name.replace('_', '-')}"


def _near(path: Path) -> str:
    """Return a path as somebody in the current folder writes it, where that is shorter."""
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the current folder is gone, or on another drive
        return str(path)
    return min(relative, str(path), key=len)
