"""The conformance kit on this backend: `engine plugins check openvino`."""

from engine_testing import BackendConformance

_ADDED = [f"test_numbers_are_computed_in_their_type[{name}]" for name in ("float64", "int64")]
_MOVED = [f"test_whole_numbers_arrive_to_the_last_bit[{name}]" for name in ("int64", "uint64")]


class TestOpenVINO(BackendConformance):
    """OpenVINO's CPU plugin."""

    backend = "openvino"
    vendor_modules = ("openvino", "onnx")
    option = "streams"
    gaps = dict.fromkeys(_ADDED + _MOVED, "OpenVINO has 32 bits: it is left to others")
    gaps["test_text_arrives_as_str"] = "OpenVINO's text in numpy loses zeros at its end"
