"""Files that a function was given; where one is not there, the error names that function."""

from __future__ import annotations

import os

from engine.context import Context
from engine.errors import ModelNotFound
from engine.formats.given import absent
from engine.model.build import located


def require_model(path: str, function: str) -> None:
    """Raise ModelNotFound unless a model's file, or this rank's part of it, is at `path`."""
    if not located(path, Context()):
        raise absent(path, f"{function} failed, there is no file ")


def require_config(path: str, function: str) -> None:
    """Raise ModelNotFound unless a configuration is at `path`; "" stands for none."""
    if path and not os.path.exists(path):
        raise ModelNotFound(f"{function} failed, config does not exist! got {path!r}", path)
