"""The conformance kit on this backend; `engine plugins check openvino` runs the same tests."""

from engine_openvino.conformance import TestOpenVINO as TestOpenVINO
