"""`engine convert`: its own options, converter_lite's flags, what it prints and what it refuses."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import written

import engine
from engine.converter.quantize import settings
from engine.formats import encryption
from engine_testing import models

KEY = "00112233445566778899aabbccddeeff"


@pytest.fixture
def affine(tmp_path):
    return models.affine(tmp_path)


def specs(path):
    with engine.load(path) as model:
        return [str(each) for each in (*model.inputs, *model.outputs)]


def test_it_converts_and_says_what_was_done(cli, affine, tmp_path):
    done = cli("convert", affine, tmp_path / "out", "--infer")
    assert (done.status, done.err) == (0, "")
    for said in (
        f"source {affine}",
        "framework ONNX",
        f"result {tmp_path / 'out.mindir'}",
        f"size {(tmp_path / 'out.mindir').stat().st_size} bytes, before {affine.stat().st_size} by",
        "graph 2 nodes",
        "Inputs name type shape x float32 [batch, 3]",
        "Outputs name type shape y float32 [batch, 3]",
        "Trial run output gave y float32[1, 3] 3 3 3",
    ):
        assert said in done.text
    assert done.out.endswith("\n\nCONVERT RESULT SUCCESS:0\n")
    assert "note:" not in done.out


def test_a_sequence_is_said_to_be_one_as_inspect_says_it(cli, tmp_path):
    model = models.sequences(tmp_path)
    said = cli("convert", model, tmp_path / "out").text
    assert "xs sequence of float32 [n]" in said
    assert "xs sequence of float32 [n]" in cli("inspect", model).text


def test_json_has_the_same_facts_and_nothing_else(cli, affine, tmp_path):
    done = cli(
        "convert", affine, tmp_path / "out", "--infer", "--optimize", "gpu_oriented", "--json"
    )
    facts = done.json
    assert facts["source"] == str(affine)
    assert facts["framework"] == "ONNX"
    assert facts["files"] == [facts["result"]] == [str(tmp_path / "out.mindir")]
    assert facts["size_before_bytes"] == affine.stat().st_size
    assert facts["size_after_bytes"] == (tmp_path / "out.mindir").stat().st_size
    tensor = {"kind": "tensor", "dtype": "float32", "shape": ["batch", 3]}
    assert facts["inputs"] == [{"name": "x", **tensor}]
    assert facts["outputs"] == [{"name": "y", **tensor}]
    assert facts["trial"] == [{"name": "y", "is": "float32[1, 3]", "begins_with": "3 3 3"}]
    assert (facts["nodes"], facts["encrypted"], facts["accuracy"]) == (2, False, {})
    assert facts["convert_s"] > 0
    [note] = facts["notes"]
    assert note.startswith("optimize='gpu_oriented' is noted in the file")


# -------------------------------------------------------------------------- what is done, two ways


# Each as people type it and as converter_lite has it, and what the result takes and gives.
WAYS = [
    ([], [], ["float32[batch, 3]"] * 2),
    (["--input-shape", "x:4,3"], ["--inputShape=x:4,3", "--inputDataType=DEFAULT"],
     ["float32[4, 3]"] * 2),
    (["--input-type", "float16", "--output-type", "INT32"],
     ["--inputDataType=FLOAT16", "--outputDataType=INT32", "--fp16=off"],
     ["float16[batch, 3]", "int32[batch, 3]"]),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "flags", "expected"), WAYS)
def test_our_options_and_converter_lites_flags_do_the_same(
    cli, affine, tmp_path, typed, flags, expected
):
    ours = cli("convert", affine, tmp_path / "ours", *typed)
    theirs = cli(
        "convert", "--fmk=ONNX", f"--modelFile={affine}", f"--outputFile={tmp_path / 'theirs'}",
        "--saveType=MINDIR", "--optimize=general", "--infer=false", "--encryption=false", *flags,
    )  # fmt: skip
    assert (ours.status, theirs.status) == (0, 0), ours.err + theirs.err
    assert specs(tmp_path / "ours.mindir") == expected
    ours, theirs = tmp_path / "ours.mindir", tmp_path / "theirs.mindir"
    assert ours.read_bytes() == theirs.read_bytes()


def test_a_line_of_converter_lites_works_with_its_files_in_any_place(cli, affine, tmp_path):
    for number, arguments in enumerate(
        (
            [f"--outputFile={tmp_path}/0", "--fp16=on", f"--modelFile={affine}", "--fmk=ONNX"],
            [affine, "--infer=true", f"--outputFile={tmp_path}/1"],
            [f"--modelFile={affine}", "--fmk", "onnx", f"{tmp_path}/2"],
            ["--modelFile", affine, "--outputFile", f"{tmp_path}/3"],
        )
    ):
        done = cli("convert", *arguments)
        assert done.status == 0, done.err
        assert (tmp_path / f"{number}.mindir").exists()
        assert done.out.splitlines()[-1] == "CONVERT RESULT SUCCESS:0"
        assert ("Trial run" in done.out) is (number == 1)


@pytest.mark.parametrize(
    "arguments",
    [["--encrypt-key", KEY], ["--encryption=true", f"--encryptKey={KEY}"], [f"--encryptKey={KEY}"]],
)
def test_a_key_encrypts_and_is_printed_nowhere(cli, affine, tmp_path, arguments):
    done = cli("convert", affine, tmp_path / "out", *arguments)
    assert done.status == 0
    assert "encrypted AES-GCM" in done.text
    assert KEY not in done.out + done.err
    assert (tmp_path / "out.mindir").read_bytes()[:4] == bytes.fromhex("d85e3a7f")
    again = cli("convert", tmp_path / "out.mindir", tmp_path / "open", f"--decryptKey={KEY}")
    assert again.status == 0, again.err
    assert "framework MINDIR" in again.text
    assert specs(tmp_path / "open.mindir") == ["float32[batch, 3]"] * 2


def test_keys_come_from_files_and_the_environment_and_the_mode_from_the_file(
    cli, affine, tmp_path, monkeypatch
):
    key = tmp_path / "key.hex"
    key.write_text(KEY + "\n")
    locked = tmp_path / "out.mindir"
    assert cli("convert", affine, tmp_path / "out", f"--encryptKey=@{key}").status == 0
    locked.write_bytes(encryption.encrypt(affine.read_bytes(), bytes.fromhex(KEY), "AES-CBC"))
    assert "is encrypted; set decrypt_key" in cli("convert", locked, tmp_path / "open").err
    for option in (["--dec-key", KEY], ["--decrypt-key", f"@{key}"], [f"--decryptKey=@{key}"]):
        done = cli("convert", locked, tmp_path / "open", *option)
        assert done.status == 0, done.err
    monkeypatch.setenv("ENGINE_DEC_KEY", f"@{key}")
    assert cli("convert", locked, tmp_path / "open").status == 0
    wrong = cli("convert", locked, tmp_path / "open", "--dec-mode", "AES-GCM")
    assert wrong.status == 1
    plain = cli("convert", affine, tmp_path / "open")
    assert "decrypt_key" not in plain.out


def test_a_flag_without_a_value_is_not_given(cli, affine, tmp_path):
    flags = [
        "configFile", "decryptKey", "encryptKey", "inputShape", "weightFile", "decryptMode",
        "inputDataFormat", "outputDataFormat", "inputDataType", "outputDataType", "saveType",
        "device", "optimize", "fp16", "infer",
    ]  # fmt: skip
    done = cli(
        "convert", "--fmk=ONNX", f"--modelFile={affine}", f"--outputFile={tmp_path / 'out'}",
        *(f"--{flag}=" for flag in flags), "--configFile", "", "--decryptKey", "",
    )  # fmt: skip
    assert (done.status, done.err) == (0, "")
    assert specs(tmp_path / "out.mindir") == ["float32[batch, 3]"] * 2


@pytest.mark.parametrize(
    "shapes", [["left:2,5;right:5,1"], ["left=2,5", "right=5,1"], ["left=2,5;right:5, 1"]]
)
def test_shapes_have_two_spellings_in_each_command(cli, tmp_path, shapes):
    path = models.shared_dims(tmp_path)
    given = [part for shape in shapes for part in ("--input-shape", shape)]
    assert cli("convert", path, tmp_path / "out", *given).status == 0
    assert specs(tmp_path / "out.mindir")[:2] == ["float32[2, 5]", "float32[5, 1]"]
    given = [part for shape in shapes for part in ("--shape", shape)]
    done = cli("run", path, *given, "--json").json
    assert [each["shape"] for each in done["inputs"]] == [[2, 5], [5, 1]]


def test_a_name_with_a_colon_in_it_takes_a_shape(cli, tmp_path):
    proto = onnx.load(models.affine(tmp_path))
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "x:0"
    onnx.save(proto, tmp_path / "m.onnx")
    for number, shape in enumerate(("x:0:4,3", "x:0=4,3")):
        assert cli("convert", tmp_path / "m.onnx", tmp_path / f"{number}", "--input-shape", shape)
        assert specs(tmp_path / f"{number}.mindir")[0] == "float32[4, 3]"
        done = cli("run", tmp_path / "m.onnx", "--shape", shape, "--json").json
        assert [each["shape"] for each in done["inputs"]] == [[4, 3]]


@pytest.mark.parametrize(
    ("output", "result"),
    [
        ("net.onnx", "net.onnx"), ("net.ms", "net.ms"), ("net.v2", "net.v2.mindir"),
        ("net.trt", "net.trt.mindir"), ("folder", "folder/affine.mindir"),
        ("folder/", "folder/affine.mindir"), ("folder/net", "folder/net.mindir"),
    ],
)  # fmt: skip
def test_the_output_is_what_the_user_wrote(cli, affine, tmp_path, monkeypatch, output, result):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    before = {*tmp_path.rglob("*")}
    assert cli("convert", affine, output).status == 0
    assert {*tmp_path.rglob("*")} - before == {tmp_path / result}
    assert specs(tmp_path / result) == ["float32[batch, 3]"] * 2


def test_converter_lites_flag_names_the_output_without_its_ending(
    cli, affine, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for output in ("net.onnx", "folder"):
        assert cli("convert", affine, f"--outputFile={output}").status == 0
        assert specs(tmp_path / f"{output}.mindir") == ["float32[batch, 3]"] * 2


def test_a_converted_model_does_not_replace_itself_in_its_folder(cli, tmp_path):
    (tmp_path / "net.mindir").write_bytes(models.affine(tmp_path).read_bytes())
    cli("convert", tmp_path / "net.mindir", tmp_path).fails(
        "where 'net.mindir' is the model itself; name a file in it"
    )


def test_weights_are_halved(cli, digits, tmp_path):
    path = digits / "digits.onnx"
    facts = cli("convert", path, tmp_path / "half", "--fp16", "--infer", "--json").json
    assert facts["size_after_bytes"] < 0.6 * facts["size_before_bytes"]
    assert facts["inputs"][0]["dtype"] == "float32"
    images = np.load(digits / "test_images.npz")["image"]
    with engine.load(path) as before, engine.load(tmp_path / "half.mindir") as after:
        np.testing.assert_allclose(
            after(images)["probabilities"], before(images)["probabilities"], atol=0.01
        )


QUANTIZATION = """\
[common_quant_param]
quant_type=WEIGHT_QUANT
bit_num=8
"""


@pytest.mark.parametrize("option", ["--quantize", "--config", "--configFile"])
def test_weights_are_quantized_and_compared(cli, digits, tmp_path, option):
    (tmp_path / "q.ini").write_text(QUANTIZATION)
    path = digits / "digits.onnx"
    done = cli("convert", path, tmp_path / "out", f"{option}={tmp_path / 'q.ini'}")
    assert done.status == 0, done.err
    assert "Accuracy against the original" in done.text
    [columns] = [line.split() for line in done.out.splitlines() if line.startswith("output  ")]
    assert columns[-1:] == ["agreement"]  # of the scores' places and of the labels
    assert columns.count("agreement") == 1
    assert "note: WEIGHT_QUANT: " in done.text
    assert (tmp_path / "out.mindir").stat().st_size < 0.5 * path.stat().st_size
    facts = cli(
        "convert", path, tmp_path / "out", "--json", "--set", "common_quant_param.bit_num=8",
        "--set", "common_quant_param.quant_type=WEIGHT_QUANT",
    ).json  # fmt: skip
    assert 0.99 < facts["accuracy"]["probabilities"]["cosine"] <= 1


def test_one_setting_goes_over_the_files_and_leaves_its_others(cli, digits, tmp_path):
    (tmp_path / "q.ini").write_text(QUANTIZATION)
    done = cli(
        "convert", digits / "digits.onnx", tmp_path / "out", "--quantize", tmp_path / "q.ini",
        "--set", "common_quant_param.bit_num=99",
    ).fails("bit_num")  # fmt: skip
    assert "99" in done.err


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (["--trainModel=true"], "trainModel has no effect on this conversion"),
        (["--optimizeTransformer=true"], "optimizeTransformer has no effect on this conversion"),
        (["--device=Ascend"], "device='Ascend' has no effect: the file is for every device"),
        (["--optimize=ascend_oriented"], "is noted in the file"),
        (["--output-format=NHWC"], "output_format has no effect: no output has 4 axes"),
        (["--weightFile=net.caffemodel"], "net.caffemodel is not read: only Caffe models"),
        (["--dec-key", KEY], "affine.onnx is not encrypted"),
        (["--encryption=false", f"--encryptKey={KEY}"], "is not encrypted: encrypt_key is set"),
        (["--dec-key", KEY, "--fmk", "MINDIR"], "affine.onnx is not encrypted"),
    ],
)
def test_what_has_no_effect_is_noted(cli, affine, tmp_path, arguments, note):
    done = cli("convert", affine, tmp_path / "out", *arguments)
    assert done.status == 0
    assert note in done.text
    assert "note:" not in cli("convert", affine, tmp_path / "out", *arguments, "-q").out
    assert "has no effect" not in cli("convert", affine, tmp_path / "out", "--trainModel=false").out


# ------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "missing argument 'MODEL'"),
        (["m.onnx"], "missing argument 'OUTPUT'"),
        (["--modelFile=m.onnx"], "missing argument 'OUTPUT'"),
        (["--modelFile=m.onnx", "m.onnx", "out"], "unexpected extra argument"),
        (["m.onnx", "out", "--nope=1"], "no such option"),
        (["m.onnx", "out", "--fp16=maybe"], "--fp16: expected on, off, true or false, got 'maybe'"),
        (["m.onnx", "out", "--input-shape", "1,3"], "expected NAME:SIZE,SIZE,..., for example x"),
        (["m.onnx", "out", "--inputShape=x:1,a"], "got 'x:1,a'"),
        (["m.onnx", "out", "--inputShape=:1"], "got ':1'"),
        (["m.onnx", "out", "--input-format", "NC"], "expected one of NCHW, NHWC, got 'NC'"),
        (["m.onnx", "out", "--inputDataType=BF16"], "INT64, DEFAULT, got 'BF16'"),
        (["m.onnx", "out", "--saveType=OM"], "expected one of MINDIR, MINDIR_LITE, got 'OM'"),
        (["m.onnx", "out", "--optimize", "O3"], "optimize must be 'none', 'general', "),
        (["m.onnx", "out", "--optimize=ascend_oriented:1"], "chip_name must be in [default, 910b]"),
        (["m.onnx", "out", "--device=GPU"], "device must be in [Ascend], but got GPU"),
        (["m.onnx", "out", "--decrypt-mode=AES"], "is not one of 'AES-GCM', 'AES-CBC',"),
        (["m.onnx", "out", "--encryption=true"], "expected --encrypt-key (--encryptKey) as well"),
        (["--outputFile=out"], "missing argument 'MODEL'"),
        (["m.onnx", "out", "--encrypt-key", "xyz"], "--encrypt-key: expected a key in hexadecimal"),
        (["m.onnx", "out", "--encrypt-key=@no.hex"], "the file 'no.hex' cannot be read: No such"),
        (["m.onnx", "out", "--inputShape=x:1,3;x:2,3"], "expected one shape for each input"),
        (["m.onnx", "out", "--set", "a"], "expected SECTION.KEY=VALUE"),
        (["m.onnx", "out", "--set", "common_quant_param.quant_typ=x"], "mean 'quant_type'?"),
        (["m.onnx", "out", "--set", "model_file.path=x"], "known: mindir_path"),
    ],
)
def test_wrong_usage_is_status_2_and_names_the_help(
    cli, arguments, expected, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    models.affine(tmp_path).rename("m.onnx")
    done = cli("convert", *arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert expected in done.err
    assert done.err.splitlines()[-1] == "help: engine convert --help"
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["absent.onnx", "out"], "absent.onnx: no such file; in that folder: 'm.mindir'"),
        (["m.onnx", "nowhere/out"], "no folder 'nowhere'; make it first"),
        (["m.mindir", "m"], "is model_file itself, which it would replace"),
        ([".", "out"], "is a folder without a saved_model.pb"),
        (["m.onnx", "out", "--fmk", "tflite"], "holds an ONNX model, but fmk_type is FmkType.TFLI"),
        (["x.om", "out", "--fmk=OM"], "OM is compiled for one NPU, with nothing left to convert"),
        (["x.ms", "out", "--fmk=MSLITE"], "MSLITE is a .ms model for devices; convert the model"),
        (["n.prototxt", "out", "--fmk=CAFFE"], "Caffe models are not read; make it ONNX where"),
        (["n.prototxt", "out"], "is a text file; expected a model of ONNX, MindIR, PyTorch,"),
        (["cut.tflite", "out"], "cut.tflite: is no TensorFlow Lite model: expected b'TFL3'"),
        (["m.onnx", "out", "--quantize", "typo.ini"], "did you mean [common_quant_param]?"),
        (["m.onnx", "out", "--config", "no.ini"], "no.ini: no such file; give --config a config"),
        (["m.onnx", "out", "--config", "."], ".: is a folder; give --config a configuration file"),
        (["m.onnx", "out", "--quantize", "no.ini"], "no.ini: no such file; give --quantize a con"),
        (["m.onnx", "out", "--quantize", "plain.ini"], "how to quantize, got: registry; for"),
        (["m.onnx", "out", "--encrypt-key", "12"], "encrypt_key must be 16 bytes as 32 hexadecim"),
        (["m.onnx", "out", "--input-shape", "x:0,3"], "input_shape of 'x': dim 0 is 0; expected"),
    ],
)
def test_a_conversion_that_fails_is_one_line_of_error(
    cli, arguments, expected, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    models.affine(tmp_path).rename("m.onnx")
    (tmp_path / "m.mindir").write_bytes((tmp_path / "m.onnx").read_bytes())
    (tmp_path / "n.prototxt").write_text('name: "LeNet"\n')
    (tmp_path / "plain.ini").write_text("[registry]\na=b\n")
    (tmp_path / "typo.ini").write_text("[common_quant_parm]\nquant_type=WEIGHT_QUANT\n")
    (tmp_path / "cut.tflite").write_bytes(b"\x20\0\0\0TF" + bytes(99))
    before = sorted(tmp_path.iterdir())
    done = cli("convert", *arguments)
    assert done.status == 1
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert expected in done.err
    assert "Converter model failed" not in done.err
    assert sorted(tmp_path.iterdir()) == before


def test_a_section_that_is_like_no_other_is_told_all_there_are(cli, affine, tmp_path):
    done = cli("convert", affine, tmp_path / "out", "--set", "42.bit_num=8")
    assert done.status == 2
    for name in ("common_quant", "full_quant", "weight_quant", "dynamic_quant", "data_preprocess"):
        assert f"[{name}_param]" in done.err


def test_a_misspelt_section_is_an_error_on_the_command_line_and_a_warning_in_a_file(
    cli, affine, tmp_path
):
    said = "configuration section [comon_quant_param] is unknown and not read; did you mean "
    cli("convert", affine, tmp_path / "out", "--set", "comon_quant_param.bit_num=8").fails(
        f"error: invalid value for --set: {said}[common_quant_param]?\n", 2
    )
    config = tmp_path / "config.ini"
    config.write_text("[comon_quant_param]\nbit_num = 8\n")
    done = cli("convert", affine, tmp_path / "out", "--config", config)
    assert (done.status, done.err) == (0, f"warning: {said}[common_quant_param]?\n")


# ----------------------------------------------------------------------------------- on a terminal


def shown(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()


@pytest.mark.parametrize(
    "columns", [40, *(pytest.param(n, marks=pytest.mark.slow) for n in (80, 200))]
)
def test_the_tables_fit_and_break_no_name(terminal, digits, tmp_path, columns):
    done = terminal(
        "convert", "digits.onnx", tmp_path / "out", "--infer", columns=columns, cwd=digits
    )
    assert done.status == 0
    lines = shown(done.out)
    words = " ".join(lines).split()
    for whole in ("source", "framework", "probabilities", "float32", "label", "output", "gave"):
        assert whole in words
    # A path has no place to break; all else fits.
    assert max(len(line) for line in lines if str(tmp_path)[:20] not in line) <= columns
    assert lines[-1] == "CONVERT RESULT SUCCESS:0"


def test_help_lists_no_flag_of_converter_lite(cli):
    options = cli("convert", "--help").out.partition("\nOptions:\n")[2].partition("Examples:")[0]
    assert "--input-shape" in options
    assert not re.search("--(modelFile|model-file|train-model|no-)", options)


# -------------------------------------------------------------------------------------- the guide

GUIDE = (Path(__file__).parents[3] / "docs/convert.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.M | re.S)


def test_what_the_guide_shows_works(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weight = np.random.default_rng(0).normal(size=(16, 3, 3, 3)).astype(np.float32)
    ends = "(float[n, 3, 224, 224] x) => (float[] y)"
    written(Path("model.onnx"), f"guide {ends} {{ y = Conv <strides = [4, 4]> (x, w) }}", w=weight)
    (tmp_path / "samples").mkdir()
    np.random.default_rng(1).normal(size=(1, 3, 224, 224)).astype("f").tofile("samples/0.bin")
    [shown] = blocks("ini")
    (tmp_path / "calibration.ini").write_text(shown.replace("/data/calibration", "samples"))
    namespace: dict[str, object] = {}
    for code in blocks("python"):
        exec(code, namespace)
    for block in blocks("console"):
        name, *arguments = shlex.split(block.removeprefix("$ "))
        assert name == "engine"
        done = cli(*arguments)
        assert done.status == 0, done.err
    assert specs(tmp_path / "net_int8.mindir")[0] == "float32[n, 3, 224, 224]"


def test_the_guides_table_of_keys_is_whole():
    keys: dict[str, set[str]] = {}
    section = ""
    for first, names in re.findall(r"^\| (`\w+_param`)? ?\| (`.+?) \| ", GUIDE, re.M):
        section = first.strip("`") or section
        keys.setdefault(section, set()).update(re.findall(r"`(\w+)`", names))
    for kind, name in (
        (settings.Common, "common_quant_param"), (settings.Full, "full_quant_param"),
        (settings.Weight, "weight_quant_param"), (settings.Dynamic, "dynamic_quant_param"),
        (settings.Data, "data_preprocess_param"),
    ):  # fmt: skip
        assert keys[name] == {each.name for each in fields(kind)} - settings._NO_EFFECT.keys()
