"""Converter against the API's table: a case a row and rule, and what convert refuses."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest
from conversions import converted

import engine
from engine import (
    Cancelled,
    CancelToken,
    Converter,
    DataType,
    FmkType,
    Format,
    ModelError,
    ModelType,
)
from engine_testing import models

Refused = tuple[Any, type[Exception], str]
KEY = "0123456789abcdef" * 2


@dataclass(frozen=True)
class Row:
    """A property. accepted: values, which read as they are. refused: values, errors and texts."""

    name: str
    default: Any
    accepted: tuple[Any, ...]
    refused: tuple[Refused, ...]


def not_a(kind: str, name: str, *values: Any) -> tuple[Refused, ...]:
    return tuple(
        (value, TypeError, f"{name} must be {kind}, but got {type(value)}.") for value in values
    )


def a_bool(name: str) -> Row:
    return Row(name, False, (True, False), not_a("bool", name, 1, 0, None, "true"))


def a_count(name: str) -> Row:
    refused = ((-1, ValueError, f"{name} must be a non-negative int."),)
    return Row(name, 0, (0, 3), (*not_a("int", name, "1", 1.0, None), *refused))


TYPES = (DataType.FLOAT32, DataType.INT8, DataType.UINT8, DataType.UNKNOWN)


def a_type(name: str) -> Row:
    text = f"{name} must be in [DataType.FLOAT32, DataType.INT8, DataType.UINT8, DataType.UNKNOWN]"
    others = [each for each in DataType if each not in TYPES]
    return Row(
        name, DataType.FLOAT32, TYPES,
        (
            *not_a("DataType", name, 43, "FLOAT32", None),
            *((each, ValueError, f"{text}, but got {each}.") for each in others),
        ),
    )  # fmt: skip


OPTIMIZE = (
    "optimize must be 'none', 'general', 'gpu_oriented', 'ascend_oriented' or "
    "'ascend_oriented:910b'."
)
ROWS = [
    Row(
        "decrypt_mode", "AES-GCM", ("AES-GCM", "AES-CBC", "SM4-CBC"),
        (
            *not_a("str", "decrypt_mode", 1, None),
            ("AES", ValueError, "decrypt_mode must be in [AES-GCM, AES-CBC], but got AES."),
        ),
    ),
    Row(
        "device", "", ("Ascend",),
        (
            *not_a("str", "device", 1, None),
            ("GPU", ValueError, "device must be in [Ascend], but got GPU."),
            ("ascend", ValueError, "device must be in [Ascend], but got ascend."),
        ),
    ),
    a_bool("enable_encryption"),
    a_bool("infer"),
    a_bool("weight_fp16"),
    a_type("input_data_type"),
    a_type("output_data_type"),
    Row(
        "input_format", Format.NHWC, (Format.NCHW, Format.NHWC),
        (
            *not_a("Format", "input_format", "NCHW", 0, None),
            (Format.NC, ValueError, "input_format must be in [Format.NCHW, Format.NHWC]"),
        ),
    ),
    Row(
        "input_shape", {}, ({"x": [1, 3]}, {"x": [-1], "y": []}, {}),
        (
            *not_a("dict", "input_shape", [1], "x:1,3", None),
            *(
                (value, TypeError, f"input_shape key must be str, but got {type(key)}.")
                for value, key in (({1: [1]}, 1), ({None: [1]}, None))
            ),
            ({"x": (1, 3)}, TypeError,
             "input_shape value must be list, but got <class 'tuple'> at key x."),
            ({"x": [1, "3"]}, TypeError,
             "input_shape value's element must be int, but got <class 'str'> at index 1."),
        ),
    ),
    Row(
        "optimize", "general",
        (
            "none", "general", "gpu_oriented", "ascend_oriented",
        ),
        (
            *not_a("str", "optimize", 1, None),
            *((text, ValueError, OPTIMIZE) for text in ("", "fast", "General", "general:910b")),
            ("ascend_oriented:910b:310", ValueError, "chip_name must be single"),
            ("ascend_oriented:910b,310", ValueError, "chip_name must be single"),
            ("ascend_oriented:310", ValueError, "chip_name must be in [default, 910b]"),
            ("ascend_oriented:", ValueError, "chip_name must be in [default, 910b]"),
        ),
    ),
    Row("save_type", ModelType.MINDIR, tuple(ModelType),
        not_a("ModelType", "save_type", 0, "MINDIR", None)),
    a_count("device_id"),
    a_count("rank_id"),
]  # fmt: skip
KEYS = ("decrypt_key", "encrypt_key")


def test_the_table_has_every_property():
    public = {
        name
        for name, value in vars(Converter).items()
        if not name.startswith("_") and not callable(value)
    }
    assert public == {row.name for row in ROWS} | {*KEYS, "report"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_property_reads_its_default_and_what_was_assigned(row):
    converter = Converter()
    assert getattr(converter, row.name) == row.default
    for value in row.accepted:
        setattr(converter, row.name, value)
        assert getattr(converter, row.name) == value
    assert getattr(Converter(), row.name) == row.default


@pytest.mark.parametrize(
    ("name", "value", "kind", "text"),
    [(row.name, *refused) for row in ROWS for refused in row.refused],
)
def test_a_value_that_cannot_be_is_refused_and_changes_nothing(name, value, kind, text):
    converter = Converter()
    before = str(converter)
    with pytest.raises(kind) as caught:
        setattr(converter, name, value)
    assert str(caught.value).startswith(text)
    assert str(converter) == before


@pytest.mark.parametrize("name", KEYS)
def test_a_key_is_write_only_and_stands_in_no_text(name):
    converter = Converter()
    setattr(converter, name, KEY)
    with pytest.raises(TypeError, match=f"^{name} is write-only."):
        getattr(converter, name)
    for value in (1, None, b"0" * 32):
        with pytest.raises(TypeError) as caught:
            setattr(converter, name, value)
        assert str(caught.value) == f"{name} must be str, but got {type(value)}."
    assert KEY not in f"{converter}{converter!r}{vars(converter)}"


def test_what_was_read_may_be_changed_without_harm():
    converter = Converter()
    converter.input_shape = given = {"x": [1, 3]}
    given["x"][0] = 9
    converter.input_shape["x"][0] = 9
    converter.input_shape["y"] = [1]
    converter.set_config_info("registry", given_info := {"a": "b"})
    given_info["a"] = "c"
    converter.get_config_info()["registry"]["a"] = "c"
    assert converter.input_shape == {"x": [1, 3]}
    assert converter.get_config_info() == {"registry": {"a": "b"}}
    other = copy.deepcopy(converter)
    other.input_shape = {}
    other.set_config_info("registry", {})
    assert converter.input_shape == {"x": [1, 3]}
    assert converter.get_config_info() == {"registry": {"a": "b"}}


def test_its_text_lists_what_the_result_will_be_like():
    converter = Converter()
    converter.set_config_info("common_quant_param", {"bit_num": "8"})
    converter.input_shape = {"x": [1, 3]}
    converter.device = "Ascend"
    assert str(converter) == (
        "config_info: {'common_quant_param': {'bit_num': '8'}},\n"
        "weight_fp16: False,\n"
        "input_shape: {'x': [1, 3]},\n"
        "input_format: Format.NHWC,\n"
        "input_data_type: DataType.FLOAT32,\n"
        "output_data_type: DataType.FLOAT32,\n"
        "save_type: ModelType.MINDIR,\n"
        "enable_encryption: False,\n"
        "infer: False,\n"
        "optimize: general,\n"
        "device: Ascend."
    )


def test_a_misspelt_property_warns_and_names_the_nearest():
    with pytest.warns(UserWarning, match="converter has no setting 'weights_fp16'.*'weight_fp16'"):
        Converter().weights_fp16 = True  # type: ignore[attr-defined]


def test_it_is_in_the_module_of_upstreams_name_too():
    from engine import converter

    assert (converter.Converter, converter.FmkType) == (engine.Converter, engine.FmkType)


# ------------------------------------------------------------------------------------ config_info


@pytest.mark.parametrize(
    ("section", "info", "text"),
    [
        (1, {"a": "b"}, "section must be str, but got <class 'int'>."),
        (None, None, "section must be str, but got <class 'NoneType'>."),
        ("a", [("b", "c")], "config_info must be dict, but got <class 'list'>."),
        ("a", {1: "b"}, "config_info key must be str, but got <class 'int'>."),
        ("a", {"b": 1}, "config_info val must be str, but got <class 'int'>."),
        ("", {"b": None}, "config_info val must be str, but got <class 'NoneType'>."),
    ],
)
def test_a_wrong_section_is_refused(section, info, text):
    converter = Converter()
    with pytest.raises(TypeError) as caught:
        converter.set_config_info(section, info)
    assert str(caught.value) == text
    assert converter.get_config_info() == {}


def test_a_section_is_set_whole_and_nothing_without_a_name_or_keys():
    converter = Converter()
    converter.set_config_info()
    converter.set_config_info("a")
    converter.set_config_info(config_info={"b": "c"})
    assert converter.get_config_info() == {}
    converter.set_config_info("a", {"b": "c", "d": "e"})
    converter.set_config_info("a", {"f": "g"})
    converter.set_config_info("h", {})
    assert converter.get_config_info() == {"a": {"f": "g"}, "h": {}}


# ---------------------------------------------------------------------------------------- convert


@pytest.fixture
def affine_file(tmp_path: Path) -> str:
    return str(models.affine(tmp_path))


Call = Callable[[Converter, str, str], object]
ONNX = FmkType.ONNX


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c, m, o: c.convert(2, m, o), "fmk_type must be FmkType, but got <class 'int'>."),
        (lambda c, m, o: c.convert("ONNX", m, o), "fmk_type must be FmkType"),
        (lambda c, m, o: c.convert(ONNX, Path(m), o), "model_file must be str"),
        (lambda c, m, o: c.convert(ONNX, m, Path(o)), "output_file must be str"),
        (lambda c, m, o: c.convert(ONNX, m, o, None), "weight_file must be str"),
        (lambda c, m, o: c.convert(ONNX, m, o, "", {}), "config_file must be str"),
        (lambda c, m, o: c.convert(ONNX, m, o, progress=1), "progress must be callable"),
        (lambda c, m, o: c.convert(ONNX, m, o, cancel=1), "cancel must be a CancelToken"),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused(call, text, affine_file, tmp_path):
    with pytest.raises(TypeError) as caught:
        call(Converter(), affine_file, str(tmp_path / "out"))
    assert str(caught.value).startswith(text)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("name", ["model_file", "weight_file", "config_file"])
def test_a_file_that_does_not_exist_is_named(name, affine_file, tmp_path):
    arguments = {"model_file": affine_file, name: str(tmp_path / "absent")}
    with pytest.raises(RuntimeError) as caught:
        Converter().convert(ONNX, output_file=str(tmp_path / "out"), **arguments)
    assert str(caught.value).startswith(
        f"Perform convert method failed, {name} does not exist! got '{tmp_path}"
    )


FAILED = "Converter model failed! error is "


def encrypting(converter: Converter, key: str | None) -> None:
    converter.enable_encryption = True
    if key is not None:
        converter.encrypt_key = key


@pytest.mark.parametrize(
    ("prepare", "framework", "text"),
    [
        (lambda c: None, FmkType.TFLITE, "holds an ONNX model, but fmk_type is FmkType.TFLITE; p"),
        (lambda c: encrypting(c, None), ONNX, "enable_encryption is set, but encrypt_key is not;"),
        (lambda c: encrypting(c, "xy" * 16), ONNX, "encrypt_key must be 16 bytes as 32 hexadecim"),
        (lambda c: encrypting(c, KEY[:-2]), ONNX, "encrypt_key must be 16 bytes as 32 hexadecima"),
        (lambda c: encrypting(c, KEY[:-1] + " "), ONNX, "encrypt_key must be 16 bytes"),
        (lambda c: setattr(c, "decrypt_key", "zz"), ONNX, "decrypt_key must be 16 bytes as 32 he"),
        (lambda c: setattr(c, "input_shape", {"x": [0, 3]}), ONNX, "input_shape of 'x': dim 0 is"),
        (lambda c: setattr(c, "input_shape", {"x": [-2, 3]}), ONNX, "dim 0 is -2; expected 1.."),
    ],
)
def test_what_cannot_be_converted_says_so_and_leaves_nothing(
    prepare, framework, text, affine_file, tmp_path
):
    converter = Converter()
    prepare(converter)
    with pytest.raises(ModelError) as caught:
        converter.convert(framework, affine_file, str(tmp_path / "out"))
    said = str(caught.value)
    assert said.startswith(FAILED)
    assert text in said
    assert KEY[:12] not in said
    assert "\n" not in said
    assert not list(tmp_path.glob("*out*"))
    assert converter.report is None


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("", "output_file must name a file, got ''"),
        ("folder/", "output_file must name a file"),
        ("new/", "got '{folder}/new/', which is a folder; name the file, as '{folder}/new/net'"),
        ("..", "output_file must name a file"),
        ("a\0b", "output_file must name a file"),
        ("absent/out", "no folder '{folder}/absent'; make it first"),
        ("taken", "taken.mindir': is a folder; name a file"),
        ("model", "is model_file itself, which it would replace; choose another name"),
        ("link", "is model_file itself"),
    ],
)
def test_where_a_result_cannot_go_is_said_before_the_work(output, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = models.affine(tmp_path).rename(tmp_path / "model.mindir")
    (tmp_path / "taken.mindir").mkdir()
    (tmp_path / "link.mindir").symlink_to(model)
    before = model.read_bytes()
    given = output if output in ("", "..", "a\0b") else f"{tmp_path}/{output}"
    with pytest.raises(ModelError) as caught:
        converted(model, given, FmkType.MINDIR)
    assert text.format(folder=tmp_path) in str(caught.value)
    assert str(caught.value).startswith(FAILED)
    assert model.read_bytes() == before


@pytest.mark.parametrize(
    ("save_type", "output", "written"),
    [
        (ModelType.MINDIR, "net", "net.mindir"),
        (ModelType.MINDIR, "net.mindir", "net.mindir"),
        (ModelType.MINDIR, "net.v1.2", "net.v1.2.mindir"),
        (ModelType.MINDIR, "net.ms", "net.ms.mindir"),
        (ModelType.MINDIR_LITE, "net", "net.ms"),
        (ModelType.MINDIR_LITE, "net.ms", "net.ms"),
    ],
)
def test_the_ending_is_added_where_it_is_missing(save_type, output, written, affine_file, tmp_path):
    report = converted(affine_file, tmp_path / output, save_type=save_type)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["affine.onnx", written]
    assert report.files == (tmp_path / written,)


@pytest.mark.parametrize("name", ["MINDIR", "MINDIR_LITE"])
def test_the_result_is_the_model_for_every_reader_of_its_name(
    name, affine_file, tmp_path, null_context
):
    import numpy as np

    converted(affine_file, tmp_path / "out", save_type=ModelType[name])
    [path] = tmp_path.glob("out.*")
    model = engine.Model()
    model.build_from_file(str(path), ModelType[name], null_context)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(model.predict([x])[0].get_data_to_numpy(), 2 * x + 1)


def test_layout_and_types_that_were_not_assigned_stay_the_models(affine_file, tmp_path):
    converter = Converter()
    assert converter.input_format is Format.NHWC
    converter.input_data_type = DataType.UNKNOWN
    converter.convert(ONNX, affine_file, str(tmp_path / "out"))
    before, after = onnx.load(affine_file), onnx.load(tmp_path / "out.mindir")
    assert after.graph == before.graph


def test_where_the_result_comes_from_is_in_it(affine_file, tmp_path):
    proto = onnx.load(affine_file)
    onnx.helper.set_model_props(proto, {"author": "Zoë", "converted_by": "another"})
    onnx.save(proto, affine_file)
    report = converted(affine_file, tmp_path / "out", optimize="ascend_oriented:910b")
    found = {each.key: each.value for each in onnx.load(tmp_path / "out.mindir").metadata_props}
    assert found == {
        "author": "Zoë",
        "converted_by": f"inference-engine {engine.__version__}",
        "converted_from": "ONNX affine.onnx",
        "optimized_for": "ascend_oriented:910b",
    }
    [note] = report.notes
    assert note.startswith("optimize='ascend_oriented:910b' is noted in the file")


def test_the_report_says_what_was_done(affine_file, tmp_path):
    converter = Converter()
    assert converter.report is None
    converter.convert(ONNX, affine_file, str(tmp_path / "out"))
    report = converter.report
    assert report.size_before == Path(affine_file).stat().st_size
    assert report.size_after == (tmp_path / "out.mindir").stat().st_size
    assert report.nodes == len(onnx.load(affine_file).graph.node)
    assert [str(each) for each in report.inputs] == ["float32[batch, 3]"]
    assert [each.name for each in report.outputs] == ["y"]
    assert (report.notes, report.accuracy, report.trial) == ((), {}, {})
    assert 0 < report.seconds < 60
    with pytest.raises(AttributeError):
        converter.report = None  # type: ignore[misc]
    with pytest.raises(ModelError):
        converter.convert(FmkType.CAFFE, __file__, str(tmp_path / "other"))
    assert converter.report is None


def test_an_earlier_result_is_replaced_only_by_a_whole_one(affine_file, tmp_path):
    earlier = tmp_path / "out.mindir"
    earlier.write_bytes(b"earlier")
    with pytest.raises(ModelError):
        converted(__file__, tmp_path / "out", FmkType.MINDIR)
    assert earlier.read_bytes() == b"earlier"
    converted(affine_file, tmp_path / "out")
    assert onnx.load(earlier).graph.name == onnx.load(affine_file).graph.name


def test_progress_is_shown_and_a_cancelled_conversion_leaves_nothing(affine_file, tmp_path):
    shown: list[tuple[str, int, int | None]] = []
    Converter().convert(
        ONNX, affine_file, str(tmp_path / "out"), progress=lambda *all: shown.append(all)
    )
    assert shown == [
        ("reading", 0, None), ("reading", 1, 1), ("writing", 0, None), ("writing", 1, 1),
    ]  # fmt: skip
    (tmp_path / "out.mindir").unlink()
    for when in ("reading", "writing"):
        token = CancelToken()

        def cancel(phase: str, *_: object, when: str = when, token: CancelToken = token) -> None:
            if phase == when:
                token.cancel()

        with pytest.raises(Cancelled):
            Converter().convert(
                ONNX, affine_file, str(tmp_path / "out"), progress=cancel, cancel=token
            )
        assert [each.name for each in tmp_path.iterdir()] == ["affine.onnx"]


def test_the_sections_that_were_set_win_over_the_files_and_mistakes_are_named_once(
    affine_file, tmp_path, caplog
):
    config = tmp_path / "converter.ini"
    config.write_text("[ful_quant_param]\nbit_num = '8'\n[registry]\na=1\n# nothing\n")
    converter = Converter()
    converter.set_config_info("common_quan_param", {"a": "b"})
    with caplog.at_level(logging.WARNING, "engine"):
        converter.convert(ONNX, affine_file, str(tmp_path / "out"), "", str(config))
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "configuration section [ful_quant_param] is unknown and not read; "
        "did you mean [full_quant_param]?",
        "configuration section [common_quan_param] is unknown and not read; "
        "did you mean [common_quant_param]?",
    ]
    assert converter.report is not None
    assert converter.report.notes == (
        *said,
        "configuration section [registry] has no effect on a conversion",
    )


def test_a_configuration_that_cannot_be_read_names_the_line(affine_file, tmp_path):
    config = tmp_path / "converter.ini"
    config.write_text("[registry]\nno equals sign\n")
    with pytest.raises(RuntimeError, match=r"^load configuration failed! .*converter.ini, line 2"):
        Converter().convert(ONNX, affine_file, str(tmp_path / "out"), "", str(config))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("net.trt", "not .trt: a backend compiles it for its device when a Model is built of it"),
        ("net.OM", "not .om: a backend compiles it"),
        ("net.tflite", "not .tflite; no other form is written"),
        ("net.v1.2", ""),
        ("net", ""),
    ],
)
def test_a_name_of_another_form_is_a_note_and_a_warning(name, says, affine_file, tmp_path, caplog):
    report = converted(affine_file, tmp_path / name)
    assert (tmp_path / f"{name}.mindir").exists()
    if not says:
        assert not caplog.records
        assert not report.notes
        return
    [note] = report.notes
    assert note.startswith(f"the result is ONNX, {says}")
    assert caplog.messages == [f"{tmp_path / name}.mindir: {note}"]


def test_a_key_that_encrypts_nothing_is_a_warning(affine_file, tmp_path, caplog):
    converter = Converter()
    converter.encrypt_key = KEY
    converter.convert(ONNX, affine_file, str(tmp_path / "out"))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "out.mindir: the result is not encrypted: encrypt_key is set" in record.getMessage()
    assert KEY not in caplog.text
    caplog.clear()
    converter.enable_encryption = True
    converter.convert(ONNX, affine_file, str(tmp_path / "out"))
    assert not caplog.records


def test_what_belongs_to_another_conversion_is_noted(affine_file, tmp_path):
    converter = Converter()
    converter.encrypt_key = converter.decrypt_key = KEY
    converter.convert(ONNX, affine_file, str(tmp_path / "out"), weight_file=__file__)
    assert converter.report is not None
    assert converter.report.notes == (
        "the result is not encrypted: encrypt_key is set, but not enable_encryption",
        f"{__file__} is not read: only Caffe models have a weight_file",
        f"decrypt_key is not used: {affine_file} is not encrypted",
    )
    assert onnx.load(tmp_path / "out.mindir").graph.node
