"""MindSpore Lite's words stand in front of an error's text, and can be told from it."""

from __future__ import annotations

import pickle

from engine.config.wording import own_text, prefixed
from engine.errors import InputError


def test_an_error_keeps_its_own_text_behind_any_number_of_prefixes() -> None:
    error = InputError("input 'x' is missing", "x")
    assert own_text(error) == str(error) == "input 'x' is missing"
    assert prefixed(prefixed(error, "inner failed! "), "outer failed! ") is error
    assert str(error) == "outer failed! inner failed! input 'x' is missing"
    assert own_text(error) == "input 'x' is missing"
    assert error.name == "x"


def test_an_error_of_another_process_keeps_both_texts() -> None:
    error = pickle.loads(pickle.dumps(prefixed(InputError("it is missing"), "predict failed! ")))
    assert str(error) == "predict failed! it is missing"
    assert own_text(error) == "it is missing"
