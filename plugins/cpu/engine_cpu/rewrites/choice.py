"""The choice of a model's form: one with its patterns rewritten, or the file's own.

A rewrite that is a gain in one model is a loss in another, so each form is measured (measured.py).
First with all patterns that match; where that is no gain, without those that vary most. Without
measuring, all that match are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from engine.host import processor
from engine.types import CompileOptions, ModelSource
from engine_cpu.options import measures_rewrites, rewrites_mode
from engine_cpu.prepare import light, read
from engine_cpu.prepared import NOTHING, Prepared
from engine_cpu.rewrites import Pattern, candidates, key_of
from engine_cpu.rewrites.apply import rewrite
from engine_cpu.rewrites.measured import METHOD, Trial, Verdict, verdict_key, verdict_of
from engine_cpu.runtime import ort


class Choice(NamedTuple):
    """A form of a model. patterns: those that it was rewritten by. notes: of what is not used."""

    prepared: Prepared
    patterns: Sequence[Pattern] = ()
    notes: Mapping[int, str] = {}


def choose(source: ModelSource, options: CompileOptions) -> Choice:
    """Return the fastest form of a model; one with nothing prepared is the file's own."""
    patterns = candidates(source, rewrites_mode(options))
    forms: list[tuple[Sequence[Pattern], Prepared]] = []
    for tried in (patterns, [pattern for pattern in patterns if not pattern.varies]):
        prepared = rewrite(source, tried) if tried else NOTHING
        if prepared.data and all(prepared.data != other.data for _, other in forms):
            forms.append((tried, prepared))
    if not forms:
        return Choice(NOTHING)
    if not measures_rewrites(options):
        return Choice(forms[0][1], forms[0][0])
    trial, model = Trial(source, options), light(read(source))
    versions = {
        "method": METHOD,
        "onnxruntime": ort.__version__,
        "processor": processor.features(),
    }
    whole = verdict_key(model.SerializeToString(deterministic=True), options, versions)
    for patterns, prepared in forms:
        verdict = verdict_of(trial, prepared, {**whole, "patterns": key_of(patterns)})
        if verdict.is_used:
            told = {i: f"{how} ({verdict.text})" for i, how in prepared.rewritten.items()}
            return Choice(prepared._replace(rewritten=told), patterns)
    return Choice(NOTHING, (), _notes(prepared, verdict))


def _notes(prepared: Prepared, verdict: Verdict) -> dict[int, str]:
    return {
        index: f"not used: {how.replace('rewritten: ', '')}: {verdict.text}"
        for index, how in prepared.rewritten.items()
    }
