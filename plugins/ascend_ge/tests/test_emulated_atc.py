"""The emulated atc refuses what the real one refuses."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine_testing import models

Atc = Callable[..., str]


@pytest.fixture
def atc(machine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Atc:
    """Compile y = 2x + 1 with these flags; what was printed, "" for success."""
    from emulated_ascend.compiler import main

    model = models.affine(tmp_path)

    def run(*extra: str, **flags: str) -> str:
        given = {
            "framework": "5",
            "model": str(model),
            "output": str(tmp_path / "out"),
            "soc_version": "Ascend910B3",
            "input_shape": "x:1,3",
            **flags,
        }
        code = main([*(f"--{name}={value}" for name, value in given.items() if value), *extra])
        printed = capsys.readouterr().out
        assert code == (0 if "ATC run success" in printed else 255)
        assert (tmp_path / "out.om").exists() == (code == 0)
        return "" if code == 0 else printed

    return run


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ({"framework": "3"}, "E10007"),
        ({"soc_version": ""}, "E10054"),
        ({"output": ""}, "E10054"),
        ({"model": ""}, "E10054"),
        ({"model": "/nonexistent.onnx"}, "E13000"),
        ({"soc_version": "Ascend9000"}, "E10001"),
        ({"precision_mode_v2": "fp8"}, "E10001"),
        ({"precision_mode": "fp16"}, "E10001"),
        ({"precision_mode": "force_fp16", "precision_mode_v2": "origin"}, "E10056"),
        ({"external_weight": "3"}, "E10001"),
        ({"output_type": "FP8"}, "E10001"),
        ({"input_shape": ""}, "E10052"),
        ({"input_shape": "x"}, "E10002"),
        ({"input_shape": "z:1,3"}, "E10016"),
        ({"input_shape": "x:1,4"}, "E10020"),
        ({"input_shape": "x:1,3,1"}, "E10020"),
        ({"input_shape": "x:one,3"}, "E10002"),
        ({"input_shape": "x:-1,3", "soc_version": "Ascend310B4"}, "E10055"),
        ({"dynamic_dims": "1;2"}, "E10001"),
        ({"input_shape": "", "dynamic_dims": "1;2"}, "E10004"),
        ({"input_shape": "x:1~4,3", "dynamic_dims": "1;2"}, "E10040"),
        ({"input_shape": "x:-1,3", "dynamic_dims": "1"}, "E10035"),
        ({"input_shape": "x:-1,3", "dynamic_dims": ";".join(map(str, range(1, 102)))}, "E10035"),
        ({"input_shape": "x:-1,3", "dynamic_dims": "1;2;1"}, "E10039"),
        ({"input_shape": "x:-1,3", "dynamic_dims": "1,3;2,3"}, "E10003"),
        ({"input_shape": "x:-1,3", "dynamic_dims": "1;x"}, "E10001"),
        ({"input_shape": "x:-1,3", "dynamic_dims": "1;2", "dynamic_batch_size": "1,2"}, "E10009"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_code(
    atc: Atc, flags: dict[str, str], code: str
) -> None:
    printed = atc(**flags)
    assert "ATC run failed" in printed
    assert code in printed


def test_an_unknown_flag_is_refused(atc: Atc) -> None:
    assert "--optimise" in atc("--optimise=1")
    assert "E10005" in atc("plain")


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"input_shape": "x:-1,3"},
        {"input_shape": "x:2~8,3"},
        {"input_shape": "x:-1,3", "dynamic_dims": ";".join(map(str, range(1, 101)))},
        {"precision_mode": "must_keep_origin_dtype"},
        {"output_type": "FP16"},
    ],
)
def test_what_fits_is_compiled(atc: Atc, flags: dict[str, str]) -> None:
    assert atc(**flags) == ""


def test_a_path_with_other_characters_is_refused_after_following_links(
    atc: Atc, tmp_path: Path
) -> None:
    odd = tmp_path / "a b"
    odd.mkdir()
    link = tmp_path / "link.onnx"
    link.symlink_to(models.affine(odd))
    assert "can only contain" in atc(model=str(link))


@pytest.mark.parametrize("is_served", [False, True])
def test_the_command_starts_the_compiler(
    machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_served: bool
) -> None:
    if not is_served:
        monkeypatch.delenv("EMULATED_ATC_SERVER")
    model = models.affine(tmp_path)
    done = subprocess.run(
        ["atc", "--framework=5", f"--model={model}", f"--output={tmp_path}/out",
         "--soc_version=Ascend910B3", "--input_shape=x:1,3"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("ATC start working now")
    assert (tmp_path / "out.om").read_bytes()[:12] == b"IMODEMULATED"
