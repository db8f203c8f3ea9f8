"""An error for a file that is not there names the function that was called."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import engine

ONE_MODEL = {
    "bench": engine.bench,
    "compare": engine.compare,
    "diff": engine.diff,
    "explain": engine.explain,
    "inspect": engine.inspect,
    "load": engine.load,
    "tune": engine.tune,
}


@pytest.mark.parametrize("name", ONE_MODEL)
def test_a_model_that_is_not_there_is_refused_by_the_function_that_was_called(name: str) -> None:
    call: Callable[[str], Any] = ONE_MODEL[name]
    wanted = f"engine.{name} failed, there is no file 'nowhere.onnx' in {Path.cwd()}"
    with pytest.raises(engine.ModelNotFound, match=f"{re.escape(wanted)}$") as caught:
        call("nowhere.onnx")
    assert caught.value.filename == "nowhere.onnx"


@pytest.mark.parametrize("name", ["compare", "diff"])
def test_the_side_whose_file_is_not_there_is_named(name: str, path: Path) -> None:
    wanted = f"b: engine.{name} failed, there is no file "
    with pytest.raises(engine.ModelNotFound, match=re.escape(wanted)):
        ONE_MODEL[name](path, path.with_name("other.onnx"))


@pytest.mark.parametrize("name", ["diff", "tune"])
def test_a_configuration_that_is_not_there_is_refused_in_the_same_words(
    name: str, path: Path
) -> None:
    more = {"tune": {"config": "no.ini"}, "diff": {"configs": ("no.ini", None)}}
    wanted = f"engine.{name} failed, config does not exist! got 'no.ini'"
    with pytest.raises(engine.ModelNotFound, match=re.escape(wanted)):
        ONE_MODEL[name](path, **more[name])


@pytest.mark.parametrize("name", ["compare", "diff"])
def test_what_is_no_model_is_refused_with_what_is_expected(name: str) -> None:
    with pytest.raises(TypeError, match="a must be a built model or a path, but got"):
        ONE_MODEL[name](3)
