"""The pass that makes a model keep ONNX's rules; the reader applies it to each that breaks one."""

from __future__ import annotations


class Regular:
    """Puts nodes in order, repeated initializers once, and types to outputs; see `repair`."""

    version = "1"

    def rewrite(self, model: bytes) -> bytes | None:
        """See engine.formats.passes.Pass."""
        from engine.formats.onnx.repair import repaired  # it needs the onnx package

        result = repaired(memoryview(model))
        return None if result == model else result


REGULAR = Regular()
