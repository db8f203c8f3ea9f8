import inspect
from pathlib import Path

import onnx
import pytest

from engine_testing import models

ALL = [
    function
    for name, function in inspect.getmembers(models, inspect.isfunction)
    if function.__module__ == models.__name__ and not name.startswith("_")
]
UNREADABLE = {models.truncated}
INVALID = {models.mismatched}
LINKED = {models.linked}  # onnx's own loader refuses links to data files; runtimes follow them


@pytest.mark.parametrize("model", ALL, ids=lambda function: function.__name__)
def test_every_runtime_can_read_the_file(model, tmp_path: Path) -> None:
    path = model(tmp_path)
    assert path.parent == tmp_path
    if model in UNREADABLE:
        with pytest.raises(Exception, match="Error parsing message"):
            onnx.load(path)
        return
    proto = onnx.load(path, load_external_data=model not in LINKED)
    assert proto.ir_version == 8
    assert {each.domain: each.version for each in proto.opset_import}[""] == 17
    if model in LINKED:
        return
    if model in INVALID:
        with pytest.raises(onnx.shape_inference.InferenceError, match="Incompatible dimensions"):
            onnx.checker.check_model(proto, full_check=True)
    else:
        onnx.checker.check_model(proto, full_check=True)


def test_weights_beside_the_model_are_in_their_file(tmp_path: Path) -> None:
    for _ in range(2):  # written twice is written anew, not appended
        path = models.external(tmp_path)
    assert (tmp_path / "external.bin").stat().st_size == 256 * 4
    assert path.stat().st_size < 1024
