"""A failure of the kit says the contract's own sentence, and how a gap is declared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine import hookspecs, types
from engine.errors import ModelError
from engine_testing import BackendConformance
from engine_testing.duties import DUTIES, NEVER_A_GAP
from engine_testing.gaps import explain

KIT = {name for name in dir(BackendConformance) if name.startswith("test_")}


@pytest.fixture(scope="module")
def contract() -> str:
    lines = [
        re.sub(r"^\s*#+ ?|#\s{2,}", "", line)
        for module in (hookspecs, types)
        for line in Path(module.__file__).read_text().splitlines()
    ]
    return " ".join(" ".join(lines).split())


@pytest.mark.parametrize("sentence", sorted({sentence for _, sentence in DUTIES.values()}))
def test_each_sentence_stands_in_the_contract(sentence: str, contract: str) -> None:
    assert sentence in contract


def test_sentences_are_given_for_tests_that_there_are() -> None:
    assert DUTIES.keys() | NEVER_A_GAP <= KIT
    assert len(KIT - DUTIES.keys()) < 15


def _notes(error: Exception, case: str, capability: str = "", operators: tuple = ()) -> list[str]:
    explain(error, case, capability, operators)
    return error.__notes__


def test_a_failure_says_how_its_case_is_declared() -> None:
    where, sentence = DUTIES["test_whole_numbers_arrive_to_the_last_bit"]
    notes = _notes(AssertionError("no"), "test_whole_numbers_arrive_to_the_last_bit[int64]")
    assert notes == [
        f'the contract, {where}: "{sentence}"',
        'where the runtime cannot do it: gaps = {"test_whole_numbers_arrive_to_the_last_bit'
        '[int64]": "why"}',
    ]


def test_a_failure_of_an_announced_ability_says_how_that_is_taken_back() -> None:
    [_, declare] = _notes(AssertionError("no"), "test_a_predict_stops_at_its_deadline", "deadlines")
    assert "leave 'deadlines' out of BackendInfo.capabilities" in declare
    assert "DeviceInfo.lacks" in declare


def test_a_refused_model_says_how_its_operator_is_declared() -> None:
    case = "test_shapes_that_depend_on_the_data_are_exact"
    [_, declare] = _notes(ModelError("no kernel"), case, "", ("NonZero", "Add"))
    assert 'gaps = {"op:NonZero": "why"}' in declare
    assert "op:Add" not in declare


def test_what_goes_wrong_in_silence_cannot_be_declared() -> None:
    [_, last] = _notes(AssertionError("no"), "test_predict_matches_the_closed_form[3]")
    assert "cannot be declared" in last
    assert "gaps" not in last
