"""Encrypted models on the command line: where their keys come from, and what keys there are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engine.formats import encryption
from engine_testing import models

NETS = Path(__file__).parents[2] / "data" / "mindir" / "nets"
GCM, CBC, SM4 = (NETS / f"enc_{name}.mindir" for name in ("AES-GCM_16", "AES-CBC_24", "SM4-CBC_16"))
KEY = bytes(range(16)).hex()
LONG_KEY = bytes(range(24)).hex()


@pytest.fixture(autouse=True)
def _without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINE_DEC_KEY", raising=False)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key.hex"
    path.write_text(f"{KEY}\n")
    return path


@pytest.fixture
def encrypted_onnx(tmp_path: Path) -> Path:
    """y = 2x + 1."""
    path = tmp_path / "affine.mindir"
    plain = models.affine(tmp_path).read_bytes()
    path.write_bytes(encryption.encrypt(plain, bytes.fromhex(KEY), "AES-CBC"))
    return path


# ---------------------------------------------------------------------------------------- the key


@pytest.mark.parametrize(("path", "key"), [(GCM, KEY), (CBC, LONG_KEY), (SM4, KEY.upper())])
def test_the_mode_is_that_of_the_file(cli, path, key, tmp_path):
    with np.load(path.with_suffix(".npz")) as arrays:
        np.save(tmp_path / "x.npy", arrays["in_0"])
        expected = arrays["out_0"]
    x = tmp_path / "x.npy"
    done = cli("run", path, "--dec-key", key, "--input", x, "--json", "--values", 999)
    assert done.status == 0, done.err
    [output] = done.json["outputs"]
    np.testing.assert_allclose(
        np.reshape(output["first_values"], expected.shape), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "command", [("run",), ("bench", "--runs", "3", "--warmup", "0"), ("inspect",)]
)
def test_the_key_may_be_in_the_environment(cli, command, key_file, monkeypatch):
    for value in (KEY, f"@{key_file}"):
        monkeypatch.setenv("ENGINE_DEC_KEY", value)
        assert cli(*command, GCM).status == 0


def test_a_key_in_the_environment_is_no_matter_to_a_plain_model(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("ENGINE_DEC_KEY", KEY)
    assert cli("run", models.affine(tmp_path)).status == 0


@pytest.mark.parametrize("is_a", [True, False])
def test_compare_gives_the_key_to_the_model_that_is_encrypted(
    cli, encrypted_onnx, key_file, tmp_path, is_a
):
    plain = tmp_path / "affine.onnx"
    both = (encrypted_onnx, plain) if is_a else (plain, encrypted_onnx)
    done = cli("compare", *both, "--dec-key", f"@{key_file}", "--shape", "x=2,3", "--json")
    assert (done.status, done.json.get("is_within")) == (0, True), done.err
    refused = cli("compare", plain, plain, "--dec-key", f"@{key_file}", "--shape", "x=2,3")
    assert refused.status == 1
    assert "it is not encrypted, but dec_key was given" in " ".join(refused.err.split())


def test_an_encrypted_onnx_model_runs_and_can_be_looked_at(cli, encrypted_onnx, key_file):
    key = ("--dec-key", f"@{key_file}")
    done = cli("run", encrypted_onnx, *key, "--shape", "x=1,3")
    assert "output data is: 3 3 3" in done.out
    shown = cli("inspect", encrypted_onnx, *key, "--target", "cpu")
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["format", "onnx"] in rows
    assert ["encryption", "AES-CBC"] in rows
    assert ["Mul", "ai.onnx", "1"] in rows
    assert cli("inspect", encrypted_onnx, *key, "--json").json["encryption"] == "AES-CBC"


# ------------------------------------------------------------------------------------ without one


@pytest.mark.parametrize("command", [("run",), ("bench",), ("inspect", "--target", "cpu")])
def test_a_missing_key_names_every_way_to_give_it(cli, command):
    done = cli(*command, SM4).fails("is encrypted with SM4-CBC")
    for way in ("--dec-key @FILE", "--dec-key HEX", "ENGINE_DEC_KEY"):
        assert way in done.err


def test_inspect_says_without_a_key_that_a_file_is_encrypted_and_how(cli):
    done = cli("inspect", CBC)
    assert done.status == 0
    rows = [line.split() for line in done.out.splitlines()]
    assert ["format", "encrypted"] in rows
    assert ["encryption", "AES-CBC"] in rows
    assert "--dec-key @FILE" in done.err
    told = json.loads(cli("inspect", CBC, "--json").out)
    assert told == {
        "model": str(CBC),
        "format": "encrypted",
        "encryption": "AES-CBC",
        "size_bytes": CBC.stat().st_size,
        "inputs": None,
        "outputs": None,
    }


def test_inspect_of_a_decrypted_mindir_shows_how_it_is_encrypted(cli):
    done = cli("inspect", CBC, "--dec-key", LONG_KEY)
    rows = [line.split() for line in done.out.splitlines()]
    assert ["format", "mindir"] in rows
    assert ["encryption", "AES-CBC"] in rows
    assert ["MatMul", "2", "yes"] in rows
    plain = cli("inspect", NETS.parent / "mlp.mindir")
    assert "encryption" not in plain.out


# ------------------------------------------------------------------------------------- no such key


@pytest.mark.parametrize("text", ["", "12345", "no hex at all", "0x0011", "00 11"])
@pytest.mark.parametrize("command", ["run", "bench", "inspect"])
def test_what_is_no_hexadecimal_is_wrong_usage_and_is_not_repeated(cli, command, text):
    done = cli(command, GCM, "--dec-key", text).fails("--dec-key", 2)
    assert "expected a key in hexadecimal, two digits a byte" in done.err
    assert not text or text not in done.err


def test_a_key_file_that_is_none_is_named(cli, tmp_path, monkeypatch):
    cli("run", GCM, "--dec-key", f"@{tmp_path / 'no.hex'}").fails(
        f"'{tmp_path / 'no.hex'}' cannot be read: No such file", 2
    )
    (tmp_path / "raw.key").write_bytes(bytes(range(240, 256)))
    cli("run", GCM, "--dec-key", f"@{tmp_path / 'raw.key'}").fails(
        f"@{tmp_path / 'raw.key'}: expected a key in hexadecimal", 2
    )
    monkeypatch.setenv("ENGINE_DEC_KEY", "zz")
    assert "ENGINE_DEC_KEY: expected a key in hexadecimal" in cli("run", GCM).err


def test_a_key_file_without_an_end_is_refused_at_once(cli):
    for option in ("--dec-key", "--decrypt-key"):
        command = ("run", GCM) if option == "--dec-key" else ("convert", GCM, "out")
        cli(*command, option, "@/dev/zero").fails("@/dev/zero: expected a key in hexadecimal", 2)


def test_a_key_of_another_length_says_which_there_are(cli):
    cli("run", GCM, "--dec-key", "0011").fails("the key has 2 bytes; AES-GCM takes 16, 24 or 32")
    assert "SM4-CBC takes 16\n" in cli("run", SM4, "--dec-key", LONG_KEY).err


@pytest.mark.parametrize("path", [GCM, SM4], ids=lambda path: path.stem)
def test_a_wrong_key_is_told(cli, path):
    for command in ("run", "inspect"):
        done = cli(command, path, "--dec-key", KEY[::-1]).fails("the key is wrong")
        assert KEY[::-1] not in done.err


def test_another_mode_than_the_files_is_told(cli):
    cli("run", GCM, "--dec-key", KEY, "--dec-mode", "AES-CBC").fails(
        "encrypted with AES-GCM, but dec_mode is 'AES-CBC'"
    )
    assert cli("run", GCM, "--dec-key", KEY, "--dec-mode", "AES-GCM").status == 0
    assert cli("run", GCM, "--dec-key", KEY, "--dec-mode", "ROT13").status == 2


def test_a_key_for_a_plain_model_is_an_error(cli, tmp_path):
    for command in ("run", "inspect"):
        cli(command, models.affine(tmp_path), "--dec-key", KEY).fails("it is not encrypted")


def test_the_help_says_how_keys_stay_out_of_sight(cli):
    text = cli("run", "--help").text
    assert "@FILE" in text
    assert "ENGINE_DEC_KEY" in text
    assert "list of processes" in text


def test_doctor_does_not_print_the_key(cli, monkeypatch):
    monkeypatch.setenv("ENGINE_DEC_KEY", KEY)
    done = cli("doctor", "cpu", "--json")
    assert "ENGINE_DEC_KEY" in done.out
    assert KEY not in done.out
