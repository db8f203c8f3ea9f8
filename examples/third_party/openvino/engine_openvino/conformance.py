"""The conformance kit on this backend: `engine plugins check openvino`."""

from engine_testing import BackendConformance

_ADDED = [f"test_numbers_are_computed_in_their_type[{name}]" for name in ("float64", "int64")]
_MOVED = [f"test_whole_numbers_arrive_to_the_last_bit[{name}]" for name in ("int64", "uint64")]
_WIDE = [
    "test_wide_integers_are_moved_to_the_last_bit",
    "test_neighbouring_integers_are_told_apart[int64]",
]
_GATHERED = [f"test_an_index_out_of_range_is_an_error[{name}]" for name in ("Gather", "GatherND")]


class TestOpenVINO(BackendConformance):
    """OpenVINO's CPU plugin."""

    backend = "openvino"
    vendor_modules = ("openvino", "onnx")
    option = "streams"
    gaps = {
        **dict.fromkeys(_ADDED + _MOVED + _WIDE, "OpenVINO has 32 bits: it is left to others"),
        **dict.fromkeys(_GATHERED, "OpenVINO checks no index: it gives 0, or what lies there"),
    }
    gaps["test_text_arrives_as_str"] = "OpenVINO's text in numpy loses zeros at its end"
