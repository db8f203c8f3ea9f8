"""Declarations of variable weights, as configurations and files have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.variable_weights import Declaration, UpdateKind, UpdateMode, declaration_of
from engine.errors import ModelError


def of_file(path: Path) -> Declaration:
    return declaration_of({"ascend_context": {"variable_weights_file": str(path)}})


def test_names_are_taken_once_in_the_order_of_their_declaration(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_bytes(b'\xef\xbb\xbf"net/a"\r\n  b , net/c \r\n\r\nnet/a\r\n')
    config = {
        "common_context": {"variable_weights_list": " 'x y',net/a,\n,d ", "isolate": "false"},
        "ascend_context": {"variable_weights_file": f'"{path}"'},
        "model_file": {"variable_weights_list": "not here"},
    }
    declaration = declaration_of(config, ("first",))
    assert declaration.names == ("first", "x y", "net/a", "d", "net/c")
    assert declaration.own_names == {"b": "net/c"}
    assert (declaration.mode, declaration.kind) == (UpdateMode.AUTO, UpdateKind.REPLACE)


@pytest.mark.parametrize(
    "line",
    [
        "mine,w0",
        '"mine","w0"',
        "'mine' , 'w0'",
        '"mine,w0"',
        "'mine, w0'",
        '"mine",w0',
        "mine,'w0'",
    ],
)
def test_two_names_may_be_quoted_together_or_each(tmp_path: Path, line: str) -> None:
    path = tmp_path / "names.txt"
    path.write_text(f"{line}\n")
    assert of_file(path).own_names == {"mine": "w0"}


def test_the_mode_and_what_an_update_means_are_common() -> None:
    keys = {"variable_weights_mode": "Rebuild", "variable_weights_update": "ADD"}
    declaration = declaration_of({"common_context": keys, "ascend_context": {"a": "b"}})
    assert (declaration.mode, declaration.kind) == (UpdateMode.REBUILD, UpdateKind.ADD)


def test_a_misspelt_mode_is_an_error_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="but got 'swop'") as caught:
        declaration_of({"common_context": {"variable_weights_mode": "swop"}})
    assert str(caught.value).endswith("; did you mean 'swap'?")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "variable weight name list is not exists."),
        (b"", "has no name in it; write one a line"),
        (b"\n \n", "has no name in it"),
        (b"w\na,b,c\n", r"line 2: expected the name of a weight or node, .*got 'a,b,c'"),
        (b"w\n,b\n", "line 2: expected the name"),
        (b"w\0", "not text in UTF-8"),
    ],
)
def test_a_file_without_names_is_an_error_that_names_it(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "names.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=rf"variable_weights_file: .*{why}") as caught:
        of_file(path)
    assert str(caught.value).startswith("load configuration failed! Error is [ascend_context] ")
    assert caught.value.path == str(path)
