"""PyTorch files become ONNX that gives PyTorch's own results."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import engine
from engine.converter.job import Job
from engine.converter.sources import pytorch
from engine.errors import ModelError
from engine.tensor.enums import DataType, FmkType

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("onnxscript") is None,
    reason='torch is not installed: pip install "inference-engine[pytorch]"',
)


def convert(path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> onnx.ModelProto:
    result = path.with_suffix(".mindir")
    job = Job(
        framework=FmkType.PYTORCH, model_file=path, output_file=result, input_shape=shapes or {}
    )
    model, _ = pytorch.read(job)
    for told in (b"pkg.torch", os.fsencode(__file__)):  # where its author has what source
        assert told not in model.SerializeToString()
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, result)
    assert not any(each.data_location for each in model.graph.initializer)
    return model


def shape_of(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def assert_same(path: Path, module: Any, *calls: tuple[Any, ...]) -> None:
    """The converted file at `path` gives what the module does, on each call's tensors."""
    import torch

    with engine.load(path.with_suffix(".mindir"), target="cpu") as model:
        for inputs in calls:
            with torch.no_grad():
                expected, _ = torch.utils._pytree.tree_flatten(module(*inputs))
            results = model.predict([each.numpy() for each in inputs])
            assert len(results) == len(expected)
            for result, wanted in zip(results, expected, strict=True):
                assert result.get_data_to_numpy().dtype == wanted.numpy().dtype
                np.testing.assert_allclose(
                    result.get_data_to_numpy(), wanted.numpy(), rtol=1e-4, atol=1e-4
                )


@pytest.fixture
def cnn() -> Any:
    """image float32[n, 3, 8, 8] -> float32[n, 5], its batch norm with statistics of its own."""
    import torch
    from torch import nn

    class Cnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.head = nn.Linear(8, 5)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.norm(self.conv(image))).mean((2, 3)))

    torch.manual_seed(0)
    module = Cnn()
    module(torch.randn(16, 3, 8, 8))  # fills in the statistics
    return module.eval()


@pytest.fixture
def tagger() -> Any:
    """tokens int64[n, t], mask bool[n, t], scale float32[] -> float32[n, t, 6] and [1, n, 6]."""
    import torch
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 8)
            self.lstm = nn.LSTM(8, 6, batch_first=True)

        def forward(
            self, tokens: torch.Tensor, mask: torch.Tensor, scale: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            states, (last, _) = self.lstm(self.embedding(tokens))
            return states.masked_fill(mask.unsqueeze(-1), 0.0) * scale, last

    torch.manual_seed(1)
    return Tagger().eval()


def images(batch: int) -> tuple[Any, ...]:
    import torch

    return (torch.randn(batch, 3, 8, 8),)


def sentences(batch: int, length: int) -> tuple[Any, ...]:
    import torch

    tokens = torch.randint(0, 11, (batch, length))
    return tokens, tokens > 7, torch.tensor(0.5)


@needs_torch
def test_an_exported_program_keeps_its_open_dims_and_names(tmp_path, cnn):
    import torch

    path = tmp_path / "cnn.pt2"
    batch = {"image": {0: torch.export.Dim("batch")}}
    torch.export.save(torch.export.export(cnn, images(2), dynamic_shapes=batch), path)
    model = convert(path)
    [image], [output] = model.graph.input, model.graph.output
    assert (image.name, output.name) == ("image", "output")
    assert shape_of(image)[1:] == [3, 8, 8]
    assert shape_of(output) == [shape_of(image)[0], 5]
    assert isinstance(shape_of(image)[0], str)
    assert_same(path, cnn, images(1), images(2), images(5))
    assert not list(tmp_path.glob("*.data"))


@needs_torch
def test_an_exported_program_with_a_transformer_has_outputs_named_by_key(tmp_path):
    import torch
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.lstm = nn.LSTM(8, 4, batch_first=True, bidirectional=True)

        def forward(self, tokens: torch.Tensor, scale: torch.Tensor) -> dict[str, Any]:
            states = self.layer(self.embedding(tokens))
            _, (last, _) = self.lstm(states)
            return {"states": states * scale, "ends": [last, tokens + 1]}

    torch.manual_seed(2)
    module = Encoder().eval()
    path = tmp_path / "encoder.pt2"
    inputs = (torch.randint(0, 11, (2, 7)), torch.randn(8))
    dims = ({0: torch.export.Dim.DYNAMIC}, None)
    torch.export.save(torch.export.export(module, inputs, dynamic_shapes=dims), path)
    model = convert(path)
    assert [each.name for each in model.graph.input] == ["tokens", "scale"]
    assert [each.name for each in model.graph.output] == ["states", "ends_0", "ends_1"]
    assert_same(path, module, inputs, (torch.randint(0, 11, (4, 7)), torch.randn(8)))


@needs_torch
def test_an_output_that_is_called_like_an_input_gets_a_name_of_its_own(tmp_path):
    import torch

    class Shift(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"x": x + 1, "same": x}

    path = tmp_path / "shift.pt2"
    torch.export.save(torch.export.export(Shift(), (torch.ones(2),)), path)
    model = convert(path)
    assert [each.name for each in model.graph.input] == ["x"]
    assert [each.name for each in model.graph.output] == ["x_", "same"]
    assert_same(path, Shift(), (torch.randn(2),))


@needs_torch
def test_torchscript_takes_its_dims_from_the_job_and_its_types_from_what_runs(tmp_path, tagger):
    import torch

    path = tmp_path / "tagger.pt"
    torch.jit.save(torch.jit.script(tagger), path)
    model = convert(path, {"tokens": (-1, -1), "mask": (-1, -1), "scale": ()})
    assert [each.name for each in model.graph.input] == ["tokens", "mask", "scale"]
    assert [each.name for each in model.graph.output] == ["output_0", "output_1"]
    types = [each.type.tensor_type.elem_type for each in model.graph.input]
    assert types == [onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.FLOAT]
    assert shape_of(model.graph.input[0]) == ["tokens_0", "tokens_1"]
    assert_same(path, tagger, sentences(1, 4), sentences(3, 9))


@needs_torch
def test_the_types_that_were_found_by_trying_are_noted(tmp_path):
    import torch

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(11, 4)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.embedding(ids) * mask.unsqueeze(-1)

    ones = torch.ones(2, 3, dtype=torch.int64)
    torch.jit.save(torch.jit.trace(Masked(), (ones, ones)), str(tmp_path / "masked.pt"))
    for asked, mask in ((None, "float32"), (DataType.INT64, "int64")):
        job = Job(
            framework=FmkType.PYTORCH, model_file=tmp_path / "masked.pt", output_file=tmp_path,
            input_shape={"ids": (2, 3), "mask": (2, 3)}, input_dtype=asked,
        )  # fmt: skip
        _, [note] = pytorch.read(job)
        assert f"the first that it took: 'ids' int64, 'mask' {mask} " in note


@needs_torch
def test_a_traced_module_with_fixed_and_open_dims(tmp_path, cnn):
    import torch

    path = tmp_path / "cnn.pth"
    torch.jit.save(torch.jit.freeze(torch.jit.trace(cnn, images(2))), path)
    model = convert(path, {"image": (-1, 3, 8, 8)})
    assert shape_of(model.graph.input[0]) == ["image_0", 3, 8, 8]
    assert [each.name for each in model.graph.output] == ["output"]
    assert_same(path, cnn, images(1), images(6))


class Argument:
    """An argument of a scripted `forward`."""

    type = "Tensor"

    def __init__(self, name: str) -> None:
        self.name = name

    def has_default_value(self) -> bool:
        return False


def test_a_shape_for_what_is_no_input_of_torchscript_is_named_beside_the_inputs():
    schema = SimpleNamespace(arguments=[Argument(name) for name in ("self", "input", "mask")])
    module = SimpleNamespace(forward=SimpleNamespace(schema=schema))
    said = r"^'x' \(of input_shape\) is no input of it; its inputs: 'input', 'mask'$"
    with pytest.raises(ModelError, match=said):
        pytorch._arguments(module, {"x": (2, 8)})
    with pytest.raises(ModelError, match="give those of 'input', 'mask', -1 for an open dim"):
        pytorch._arguments(module, {})
    assert pytorch._arguments(module, {"mask": (1,), "input": (2, 8)}) == ["input", "mask"]


@needs_torch
def test_torchscript_control_flow_and_default_arguments_are_kept(tmp_path):
    import torch

    class Branch(torch.nn.Module):
        def forward(self, x: torch.Tensor, step: int = 2, bias: torch.Tensor | None = None) -> Any:
            if bias is not None:
                return x * bias
            if x.sum() > 0:
                return x + step
            return x - step

    path = tmp_path / "branch.pt"
    Branch.forward.__annotations__["return"] = torch.Tensor
    torch.jit.save(torch.jit.script(Branch()), path)
    convert(path, {"x": (-1, 3)})
    assert_same(path, Branch(), (torch.ones(2, 3),), (-torch.ones(4, 3),))


@needs_torch
@pytest.mark.parametrize("is_script", [True, False])
def test_a_module_that_changes_its_buffers_is_refused(tmp_path, is_script):
    import torch

    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    path = tmp_path / "counter"
    if is_script:
        torch.jit.save(torch.jit.script(Counter()), path)
    else:
        torch.export.save(torch.export.export(Counter(), (torch.ones(3),)), path)
    with pytest.raises(ModelError, match=r"changes the model's own buffer 'count'.*model\.eval"):
        convert(path, {"x": (3,)})


@needs_torch
def test_wrong_shapes_of_torchscript_say_what_is_missing(tmp_path, tagger):
    import torch

    path = tmp_path / "tagger.pt"
    torch.jit.save(torch.jit.script(tagger), path)
    with pytest.raises(ModelError, match=r"'tokens', 'mask', 'scale', -1 .*--inputShape=.tokens:1"):
        convert(path)
    shapes = {"tokens": (1, 4), "mask": (1, 4), "scale": ()}
    with pytest.raises(ModelError, match=r"'y' .* its inputs: 'tokens', 'mask', 'scale'"):
        convert(path, {**shapes, "y": (1,)})
    with pytest.raises(ModelError, match=r"\[1, 4\], \[1, 5\].*check input_shape"):
        convert(path, {**shapes, "mask": (1, 5)})


@needs_torch
def test_what_the_exporter_cannot_do_is_named(tmp_path, capfd):
    import torch

    class Outputs(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": x}

    path = tmp_path / "dict.pt"
    torch.jit.save(torch.jit.script(Outputs()), path)
    capfd.readouterr()
    with pytest.raises(ModelError, match="'prim::DictConstruct' to ONNX") as caught:
        convert(path, {"x": (1,)})
    assert "\n" not in str(caught.value)
    assert caught.value.path == str(path)
    assert capfd.readouterr() == ("", "")  # torch prints the whole graph


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@needs_torch
def test_pickled_objects_are_never_loaded(tmp_path, cnn):
    import torch

    trap = tmp_path / "trap"
    for name, content in {"state.pt": cnn.state_dict(), "whole.pth": [Touch(trap)]}.items():
        torch.save(content, tmp_path / name)
        with pytest.raises(ModelError, match=r"pickled.*torch\.export\.save"):
            convert(tmp_path / name, {"image": (1, 3, 8, 8)})
    torch.save([Touch(trap)], tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(ModelError, match="pickled"):
        convert(tmp_path / "old.pt")

    whole, set_up = tmp_path / "cnn.pt2", tmp_path / "trapped.pt2"
    torch.export.save(torch.export.export(cnn, images(2)), whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(set_up, "w") as target:
        for name in source.namelist():
            is_pickled = name.endswith("sample_inputs/model.pt")
            content = (tmp_path / "whole.pth").read_bytes() if is_pickled else source.read(name)
            target.writestr(name, content)
    with pytest.raises(ModelError, match="Unpickling"):
        convert(set_up)
    assert not trap.exists()


@needs_torch
@pytest.mark.parametrize("suffix", [".pt2", ".pt"])
def test_a_damaged_file_is_an_error(tmp_path, cnn, suffix):
    import torch

    whole, cut, changed = (tmp_path / f"{name}{suffix}" for name in ("whole", "cut", "changed"))
    if suffix == ".pt2":
        torch.export.save(torch.export.export(cnn, images(2)), whole)
    else:
        torch.jit.save(torch.jit.script(cnn), whole)
    content = whole.read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match="archive is damaged"):
        convert(cut, {"image": (1, 3, 8, 8)})
    with zipfile.ZipFile(whole) as archive:
        head = next(x for x in archive.infolist() if x.filename.endswith(("model.json", ".py")))
    name = head.filename.encode()
    cut.write_bytes(content.replace(name, name[:-1] + b"\xff"))  # no UTF-8
    with pytest.raises(ModelError, match="archive is damaged"):
        convert(cut, {"image": (1, 3, 8, 8)})
    lengths = np.frombuffer(content, "<u2", 2, head.header_offset + 26)  # of the name and the rest
    place = head.header_offset + 30 + int(lengths.sum()) + 20
    changed.write_bytes(content[:place] + b"}{(" + content[place + 3 :])
    with pytest.raises(ModelError, match="cannot be converted from PyTorch"):
        convert(changed, {"image": (1, 3, 8, 8)})


def test_files_of_other_kinds_are_named(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"import torch\n")
    with pytest.raises(ModelError, match=r"is a text file; expected a \.pt2"):
        convert(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/readme", "")
    with pytest.raises(ModelError, match="zip archive, but not of PyTorch"):
        convert(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data/aotinductor/model/x.so", "")
    with pytest.raises(ModelError, match="machine code"):
        convert(path)


def test_a_missing_torch_names_the_command(tmp_path, monkeypatch):
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/constants.pkl", "")
        archive.writestr("a/code/__torch__.py", "")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    command = r'needs torch and onnxscript; run: pip install "inference-engine\[pytorch\]"'
    with pytest.raises(ModelError, match=command):
        convert(path)


@needs_torch
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mine.Outputs", "objects of class mine.Outputs, which torch does not know here; let the "),
        ("transformers.modeling_outputs.Mine", r"transformers\.modeling_outputs\.Mine"),
    ],
)
def test_a_class_that_torch_does_not_know_is_named(tmp_path, name, told):
    import torch

    class Outputs:
        def __init__(self, y: Any) -> None:
            self.y = y

    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return Outputs(x + 1)

    torch.utils._pytree.register_pytree_node(
        Outputs, lambda made: ([made.y], None), lambda ys, _: Outputs(*ys),
        serialized_type_name=name,
    )  # fmt: skip
    program = torch.export.export(Net(), (torch.zeros(2),))
    torch.export.save(program, tmp_path / "net.pt2")
    assert name in pytorch.classes_of(tmp_path / "net.pt2")
    with pytest.raises(ModelError, match=told) as caught:
        convert(tmp_path / "net.pt2")
    assert "\n" not in str(caught.value)


@needs_torch
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_a_model_of_transformers_is_converted_as_its_author_exported_it(tmp_path):
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        vocab_size=50, max_position_embeddings=32,
    )  # fmt: skip
    module = BertModel(config).eval()
    ids = torch.arange(8)[None]
    torch.export.save(torch.export.export(module, (ids,)), tmp_path / "bert.pt2")
    convert(tmp_path / "bert.pt2")
    assert_same(tmp_path / "bert.pt2", lambda x: tuple(module(x).values()), (ids,))
