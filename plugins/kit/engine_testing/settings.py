"""Level of the kit: the options that a backend declares are those that it takes."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence

import numpy as np

from engine.options import describe
from engine.types import Option
from engine_testing import models
from engine_testing.level import Level, Trial, run_child

LIMIT_S = 240


class Settings(Level):
    """`BackendInfo.options`: what is declared can be set, and what is not is refused.

    A tool that tunes a backend, or draws a form of its options, has nothing else to go by.
    """

    def test_declared_values_of_options_are_taken(self, trial: Trial) -> None:
        asked = [
            (name, option, value) for name, option in _typed(trial) for value in _values(option)
        ]
        refusals = _refusals(trial, [(name, value) for name, _, value in asked])
        for (name, option, value), refusal in zip(asked, refusals, strict=True):
            assert refusal is None, (
                f"option {name!r} is declared to take {value!r} ({describe(option)}), "
                f"but: {refusal}"
            )

    def test_other_values_of_options_are_refused(self, trial: Trial) -> None:
        asked = [
            (name, option, value) for name, option in _typed(trial) for value in _others(option)
        ]
        refusals = _refusals(trial, [(name, value) for name, _, value in asked])
        for (name, option, value), refusal in zip(asked, refusals, strict=True):
            assert refusal is not None, (
                f"option {name!r} is declared {describe(option)}, but takes {value!r}"
            )
            assert name in refusal, f"the message does not name option {name!r}: {refusal}"


def _typed(trial: Trial) -> Iterator[tuple[str, Option]]:
    """Yield the options of which a value is known; "name*" stands for any number of others."""
    for name, option in trial.backend.info.options.items():
        if isinstance(option, Option) and not name.endswith("*"):
            yield name, option


def _refusals(trial: Trial, asked: Sequence[tuple[str, str]]) -> list[str | None]:
    """Return why each value of an option is not understood, in a fresh process; None where it is.

    asked: names of options and the values that they are set to, one at a time.
    """
    if not asked:
        return []
    source = trial.source(models.affine)
    options = trial.options(shapes=trial.shapes(source, [np.ones((1, 3), np.float32)]))
    order, answer = trial.folder / "values.pickle", trial.folder / "values.jsonl"
    order.write_bytes(pickle.dumps((trial.backend.name, source, options, asked)))
    arguments = ("-m", "engine_testing.option_values", str(order), str(answer))
    child = run_child(*arguments, cwd=trial.folder, limit_s=LIMIT_S)
    lines = answer.read_text(encoding="utf-8").splitlines() if answer.exists() else []
    at = "the end" if len(lines) == len(asked) else " = ".join(asked[len(lines)])
    assert child.returncode == 0, f"a fresh process failed at {at}:\n{child.stdout}{child.stderr}"
    return [json.loads(line) for line in lines]


def _values(option: Option) -> list[str]:
    """Return values that the option declares: all choices, both limits, the default."""
    values = [*option.choices, *([option.default] if option.default else [])]
    if option.type is bool and not option.choices:
        values += ["0", "1", "true", "false"]
    for limit in (option.lowest, option.highest):
        if limit is not None and not option.choices:
            values.append(_text(option, limit))
    return list(dict.fromkeys(values))


def _others(option: Option) -> list[str]:
    """Return values that the option rules out."""
    if option.choices:
        return ["no_such_choice"]
    if option.type is str:
        return []
    values = ["no_such_value"]
    if option.lowest is not None:
        values.append(_text(option, option.lowest - 1))
    if option.highest is not None:
        values.append(_text(option, option.highest + 1))
    return values


def _text(option: Option, number: float) -> str:
    return str(int(number)) if option.type is int else repr(float(number))
