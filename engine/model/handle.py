"""The common part of the classes that hold a model: its path, and their use in a `with` block."""

from __future__ import annotations

from engine.host.blocks import Closing

FORKED = (
    "this process was forked after the model was built, and runtimes do not survive that; "
    "build the model in this process, or start processes with 'spawn'"
)


class Handle(Closing):
    """A user's hold on a model that was built: closing it frees what runs the model."""

    @property
    def model_path_(self) -> str:
        """The file that it was built from, "" for one that was in memory."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"model_path: {self.model_path_}."
