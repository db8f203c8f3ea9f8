"""Each hostile file is refused with a message that says what is wrong with it."""

from __future__ import annotations

import os
import re
import tracemalloc
from pathlib import Path
from typing import Any, NoReturn

import hostile
import pytest

from engine import formats
from engine.errors import ModelError
from engine_testing import encode

CASES = dict(hostile.cases())

MESSAGES = {
    "empty": "empty file; expected a model",
    "random": r"of no format known here \(it starts with cd 07",
    "zeros": "of no format known here",
    "truncated": r"damaged ONNX file: field 7 claims 75 bytes where 61 are left, at byte 11 of 74",
    "truncated_after_first_field": "damaged ONNX file: field 2 claims 7 bytes",
    "truncated_in_graph": "damaged ONNX file: field 7 claims 75 bytes where 27 are left",
    "no_graph": "no graph in it",
    "two_graphs": "two graphs; expected one",
    "group": "field 30 has wire type 3",
    "endless_varint": "a varint of more than 64 bits, at byte 14",
    "two_gigabyte_length": "field 7 claims 2,147,483,647 bytes where 0 are left",
    "eight_exabyte_length": "field 7 claims 9,223,372,036,854,775,807 bytes",
    "name_not_utf8": r"the name b'\\xff\\xfe' is not UTF-8",
    "tflite": "a TensorFlow Lite model; .*convert it: engine convert",
    "tensorflow_graph": "a TensorFlow graph; .*convert it: engine convert",
    "tensorflow_saved_model": "a TensorFlow graph; .*convert it: engine convert",
    "tensorrt_engine": "a TensorRT engine; .*build from the ONNX model",
    "ascend_model": "an Ascend offline model; .*build from the ONNX model",
    "onnxruntime_model": "ORT format; .*load the ONNX file",
    "onnx_marked_as_onnxruntime_model": "ORT format",
    "pytorch_pickle": r"a PyTorch file; .*convert it: engine convert .*torch\.onnx\.export",
    "pytorch_zip": r"a PyTorch file; .*convert it: engine convert .*torch\.onnx\.export",
    "pickle": "a Python pickle",
    "hdf5": "an HDF5 file.*engine convert",
    "safetensors": "weights in safetensors format, without a graph",
    "gguf": "a GGUF model",
    "git_lfs_pointer": "a Git LFS pointer.*run: git lfs pull",
    "web_page": "an XML or HTML page.*download it again",
    "onnx_text": r"ONNX in text form; .*onnx\.save",
    "onnx_language": r"ONNX in text form; .*onnx\.save",
    "onnx_json": r"ONNX as JSON; .*onnx\.save",
    "onnx_tensor": "an ONNX tensor, not a model",
    "mindir": "the graph gives nothing",
    "encrypted_mindir": "pass its key",
    "missing": "no such file",
    "folder_instead_of_file": "is a folder; expected a model file; there is 'model.onnx' in it",
    "saved_model_folder": "a TensorFlow SavedModel; convert it: engine convert",
    "pipe": "not a regular file",
    "device": "not a regular file",
    "link_to_itself": "cannot be opened: Too many levels of symbolic links",
    "zip_of_a_model": "a zip archive; .*unpack it",
    "no_opset": "no opset_import",
    "opset_zero": "version 0 of operator set ''",
    "opset_absurd": "version 1099511627776 of operator set ''",
    "two_opsets": "versions 17 and 18 of operator set ''; expected one",
    "ir_version_zero": "IR version 0; expected a number from 1",
    "ir_version_negative": "IR version -3",
    "ir_version_absurd": "IR version 1099511627776",
    "unknown_input": r"node 'add' \(Add\) of the graph reads 'ghost', which no input",
    "unsorted_with_unknown_input": r"node 'late' \(Add\) .* reads 'ghost', which no input",
    "cycle": "form a cycle: '(first' -> 'second' -> 'first|second' -> 'first' -> 'second)'",
    "node_reads_itself": "form a cycle: 'ouroboros' -> 'ouroboros'",
    "long_cycle": r"form a cycle: 'Neg:\d+' -> .* -> \.\.\. -> 'Neg:\d+'",
    "output_twice": r"node 1 \(Abs\) of the graph defines 'y' again",
    "output_is_input": r"node 0 \(Neg\) of the graph defines 'x' again",
    "two_inputs_of_one_name": "two inputs 'x'",
    "two_initializers_of_one_name": "two initializers 'w' that differ",
    "initializer_without_name": "an initializer of the graph has no name",
    "output_of_nobody": "the graph promises the output 'y', which no node",
    "no_outputs": "the graph has no outputs",
    "empty_graph": "the graph has no outputs",
    "node_without_operator": "node 0 has no operator",
    "long_name": "a name of 100,000 bytes; at most 65,536",
    "too_many_nodes": "more nodes, attributes, tensors and other parts than any model of 5,000,045",
    "unknown_input_in_subgraph": r"node 0 \(Neg\) of the subgraph 'body' of node 'if' \(If\) reads",
    "subgraph_reads_a_later_node": "reads 'later', which no input, initializer or node before it",
    "input_without_type": "input 'x' has no type; .*infer_shapes",
    "input_of_unknown_element": r"input 'x' has element type 99; expected one of ONNX's 1\.\.28",
    "input_of_undefined_element": "input 'x' has no type",
    "input_with_negative_dim": "input 'x' has a negative dim: -7",
    "input_larger_than_memory": "input 'x' has dims .* more elements than 64 bits count",
    "input_of_too_many_dims": "input 'x' has more than 64 dims",
    "input_of_two_types": "input 'x' has two types",
    "sparse_input": "input 'x' is a sparse tensor; expected",
    "opaque_input": "input 'x' is an opaque value; expected",
    "sequence_of_nothing": "input 'x' is of type sequence but does not say of what",
    "sequence_of_no_type": "input 'x' is of type sequence but does not say of what",
    "sequence_of_two_types": "input 'x' has two types",
    "output_without_type": "output 'y' has no type; .*infer_shapes",
    "tensor_negative_dim": r"tensor 'w' has a negative dim: \[-1\]",
    "tensor_dims_overflow": "tensor 'w' has dims .* more elements than 64 bits count",
    "tensor_dims_overflow_beside_zero": "tensor 'w' has dims .* more elements than 64 bits count",
    "billions_of_elements": r"float32\[2147483648, 4\], 8,589,934,592 elements, but holds no data",
    "tensor_too_short": "4,000 bytes, but its data has 16 bytes",
    "tensor_too_long": "8 bytes, but its data has 4,096 bytes",
    "tensor_without_data": "3 elements, but holds no data",
    "tensor_of_unknown_element": "tensor 'w' has element type 77",
    "tensor_of_undefined_element": "tensor 'w' has element type 0",
    "tensor_of_too_many_dims": "more than 64 dims",
    "tensor_of_packed_dims": "more than 64 dims",
    "tensor_in_the_wrong_field": "data in int64_data; expected raw_data or float_data",
    "tensor_with_too_few_numbers": "needs 9 numbers in int64_data, but has 3",
    "tensor_with_a_cut_number": "damaged ONNX file: the end comes within a varint",
    "tensor_with_half_a_float": "float_data of 3 bytes; expected a multiple of 4",
    "tensor_stored_twice": "data in raw_data and in float_data; expected one",
    "raw_strings": "strings in raw_data; expected string_data",
    "tensor_in_segments": "a tensor cut into segments",
    "sparse_index_outside": r"sparse tensor 'w' has an index outside its dims \[4\]",
    "sparse_index_negative": r"sparse tensor 'w' has an index outside its dims \[4\]",
    "sparse_unfolds_to_terabytes": "expands to 4,398,046,511,104 bytes",
    "external_absolute": "an absolute path; expected one relative to the model's folder",
    "external_parent": r"'\.\.' is not allowed",
    "external_parent_inside": r"'\.\.' is not allowed",
    "external_backslash": "expected a plain relative path",
    "external_nul": "expected a plain relative path",
    "external_nowhere": "no file is named",
    "external_no_entry": "no file is named",
    "external_link_out": r"'w\.bin', which leads out of the model's folder to '.*/secret\.bin'",
    "external_folder_link_out": r"'up/secret\.bin', which leads out of the model's folder",
    "external_link_to_device": "leads out of the model's folder to '/dev/zero'",
    "external_dangling_link": r"'w\.bin', which cannot be read: No such file",
    "external_link_to_itself": "cannot be read: Too many levels of symbolic links",
    "external_missing": r"'w\.bin', which cannot be read: No such file.*beside the model",
    "external_folder": "not a regular file",
    "external_pipe": "not a regular file",
    "external_too_short": r"wants bytes 0 to 4,000 of 'w\.bin', which has 16 bytes",
    "external_billions": r"wants bytes 0 to 34,359,738,368 of 'w\.bin', which has 16 bytes",
    "external_offset_past_end": r"wants bytes 8 to 24 of 'w\.bin', which has 16 bytes",
    "external_offset_negative": "external offset '-16'; expected a number of bytes",
    "external_offset_huge": "external offset '9{30}'; expected a number of bytes",
    "external_length_differs": "needs 16 bytes of external data, but its entry says 8",
    "external_memory_address": "'\\*' is no file name",
    "external_in_attribute": r"tensor 'w' .*'\.\.' is not allowed",
    "external_in_attribute_list": r"tensor 'w' .*'\.\.' is not allowed",
    "external_in_subgraph": r"tensor 'w' .*'\.\.' is not allowed",
    "external_in_function": r"tensor 'w' .*'\.\.' is not allowed",
    "external_in_sparse_values": r"tensor 'w' .*'\.\.' is not allowed",
    "external_location_twice": "gives its external 'location' twice",
    "external_prepacked": "external data with the entry 'prepacked_0'; expected no other than",
    "external_basepath": "external data with the entry 'basepath'",
    "external_entries": "more than 4 entries of external data",
    "deep_subgraphs": "subgraphs are nested more than 32 deep",
    "very_deep_subgraphs": "subgraphs are nested more than 32 deep",
    "deep_type": "input 'x' has a type nested more than 32 deep",
    "very_deep_type": "input 'x' has a type nested more than 32 deep",
    "deep_type_of_inner_value": "a type is nested more than 32 deep",
    "deep_type_in_attribute": "a type is nested more than 32 deep",
    "function_calls_itself": r"functions call themselves: 'f\.f0' -> 'f\.f0'",
    "functions_call_each_other": r"functions call themselves: 'f\.f.' -> 'f\.f.' -> 'f\.f.'",
    "functions_double": "inline to more than 65,536 nodes, written as 121",
    "functions_chain": "nests more than 100 calls deep",
    "function_twice": "two functions of one domain, name and overload",
    "function_reads_unknown_name": r"of the function 'f\.f0' reads 'ghost'",
    "constant_of_terabytes": r"node 'fill' \(ConstantOfShape\) makes a tensor of 4,398,046,511,104",
    "constant_of_terabytes_from_constants": "makes a tensor of 4,398,046,511,104 bytes",
    "many_large_constants": "constants of more than 17,179,869,184 bytes would be computed",
    "function_of_a_large_constant": "constants of more than 17,179,869,184 bytes",
    "many_sparse_tensors": "constants of more than 17,179,869,184 bytes would be computed",
    "expand_to_terabytes": r"node 0 \(Expand\) makes a tensor of 1,099,511,627,776 bytes",
    "tile_to_terabytes": r"node 0 \(Tile\) makes a tensor of 1,099,511,627,776 bytes",
}


def test_every_case_has_its_message() -> None:
    assert CASES.keys() == MESSAGES.keys()
    assert len(CASES) == len(list(hostile.cases()))


# These are large files themselves; what the others take must not depend on what they claim.
LARGE = {"too_many_nodes", "long_cycle"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", CASES)
def test_a_hostile_file_is_refused_by_name_in_little_memory(name: str, tmp_path: Path) -> None:
    path = CASES[name](tmp_path)
    with pytest.raises(ModelError, match=MESSAGES[name]) as caught:
        formats.open_source(path)
    assert str(path) in str(caught.value)
    assert caught.value.path == str(path)
    size = path.stat().st_size if path.is_file() else 0
    if name not in LARGE:
        tracemalloc.start()  # now: what is imported for it counts once, for no file
        try:
            with pytest.raises(ModelError):
                formats.open_source(path)
            assert tracemalloc.get_traced_memory()[1] < 20 * size + 1_000_000
        finally:
            tracemalloc.stop()
    if 0 < size < 1_000_000 or name == "empty":
        with pytest.raises(ModelError, match=r"^model bytes: ") as caught:
            formats.source_from_bytes(path.read_bytes())
        assert caught.value.path == ""


def test_a_message_stays_readable_whatever_the_names_are() -> None:
    reader = encode.node("Neg", ["\x1b[31m" * 9000], ["y"], name="n" * 60_000)
    with pytest.raises(ModelError, match="not a valid ONNX model: node 'nnn") as caught:
        formats.source_from_bytes(encode.chain(reader))
    assert len(str(caught.value)) < 1100
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["mod\0el.onnx", "m" * 300])
def test_a_name_that_no_file_can_have_is_a_model_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be opened"):
        formats.open_source(tmp_path / name)


def test_a_file_that_may_not_be_read_is_a_model_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(hostile.valid())

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)  # root may read everything
    with pytest.raises(ModelError, match="cannot be opened: Permission denied"):
        formats.open_source(path)


def test_a_missing_file_whose_ranks_parts_lie_there_is_started_by_the_launcher(
    tmp_path: Path,
) -> None:
    for rank in range(4):
        (tmp_path / f"text{rank}.onnx").write_bytes(hostile.valid())
    wanted = (
        "no such file; 'text0.onnx' to 'text3.onnx' are its ranks' parts; start them with "
        "engine launch -n 4"
    )
    with pytest.raises(ModelError, match=f"{wanted}$"):
        formats.open_source(tmp_path / "text.onnx")
    for rank in range(1, 4):
        (tmp_path / f"text{rank}.onnx").unlink()  # one alone is no slicing
    with pytest.raises(ModelError, match=r"did you mean '.*/text0\.onnx'\?"):
        formats.open_source(tmp_path / "text.onnx")


def test_a_missing_file_hints_at_models_beside_it(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(hostile.valid())
    wanted = f"no such file; did you mean '{tmp_path}/net.onnx'?"
    with pytest.raises(ModelError, match=re.escape(wanted)):
        formats.open_source(tmp_path / "nett.onnx")
    with pytest.raises(ModelError, match=re.escape("no such file; in that folder: 'net.onnx'")):
        formats.open_source(tmp_path / "whisper")
    with pytest.raises(ModelError, match="nor a folder"):
        formats.open_source(tmp_path / "gone" / "net.onnx")


def test_a_file_that_grows_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(hostile.valid())
    real = os.fdopen

    def grow(*args: Any, **kwargs: Any) -> object:
        with path.open("ab") as file:
            file.write(b"more")
        return real(*args, **kwargs)

    monkeypatch.setattr("os.fdopen", grow)
    with pytest.raises(ModelError, match="grew while it was read"):
        formats.open_source(path)
