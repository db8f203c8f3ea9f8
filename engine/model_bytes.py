"""What of `engine.formats` a backend may use: the bytes of an ONNX model, read without onnx.

fields, Budget    the fields of a protobuf message, and how many of them may be looked at
schema            the keys of onnx.proto's fields
inlined           a model with its external data in memory put into it
"""

from engine.formats.onnx import schema
from engine.formats.onnx.inline import inlined
from engine.formats.protobuf import Budget, fields

__all__ = ["Budget", "fields", "inlined", "schema"]
