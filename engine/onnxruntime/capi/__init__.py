"""onnxruntime.capi: its modules, as names that programs import."""
