"""The pass that makes a model keep ONNX's rules; the reader applies it to each that breaks one."""

from __future__ import annotations

from engine.wings import wing


class Regular:
    """Puts nodes in order, repeated initializers once, and types to outputs; see `repair`."""

    version = "1"

    def rewrite(self, model: bytes) -> bytes | None:
        """See engine.formats.passes.Pass."""
        result: bytes = wing("repaired")(memoryview(model))  # it needs the onnx package
        return None if result == model else result


REGULAR = Regular()
