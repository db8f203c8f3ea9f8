"""The core's conformance kit for this backend; `engine plugins check ascend_ge` runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from engine_testing import BackendConformance, sometimes


class TestAscendGe(BackendConformance):
    """The kit on the machine's own NPU, or, where there is none, what needs no device of it."""

    backend = "ascend_ge"
    vendor_modules = ("acl", "ge")
    option = "soc_version"
    gaps: ClassVar[Mapping[str, str]] = {
        "test_text_arrives_as_str": "Ascend devices have no strings",
        "test_a_predict_that_was_stopped_goes_on_nowhere[deadline]": sometimes(
            "at a deadline the run is left to end on the device; a real one takes no host time"
        ),
    }
