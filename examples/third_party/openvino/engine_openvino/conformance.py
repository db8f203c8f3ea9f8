"""The conformance kit on this backend: `engine plugins check openvino`."""

from engine_testing import BackendConformance

_INT64 = [
    "test_numbers_are_computed_in_their_type[int64]",
    "test_whole_numbers_arrive_to_the_last_bit[int64]",
    "test_declared_element_types_arrive_to_the_last_bit[int64]",
    "test_neighbouring_integers_are_told_apart[int64]",
    "test_wide_integers_are_moved_to_the_last_bit",
]
_GATHERED = [f"test_an_index_out_of_range_is_an_error[{name}]" for name in ("Gather", "GatherND")]


class TestOpenVINO(BackendConformance):
    """OpenVINO's CPU plugin."""

    backend = "openvino"
    vendor_modules = ("openvino", "onnx")
    option = "streams"
    gaps = {
        **dict.fromkeys(("dtype:float64", "dtype:uint64"), "OpenVINO computes it in 32 bits"),
        **dict.fromkeys(_INT64, "OpenVINO has 31 bits of it"),
        **dict.fromkeys(_GATHERED, "OpenVINO checks no index: it gives 0, or what lies there"),
        "dtype:string": "OpenVINO's text in numpy loses zeros at its end",
    }
