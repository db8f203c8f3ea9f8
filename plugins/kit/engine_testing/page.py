"""One HTML page of what was checked: levels, ledger, models on several targets, times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
       color: #222 }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #ddd;
         vertical-align: top }
td.number, th.number { text-align: right }
.good { color: #176a2c } .bad { color: #a5121d; font-weight: 600 }
pre { background: #f5f5f5; padding: .6rem; overflow-x: auto; white-space: pre-wrap }
"""
_OUTCOMES = ("passed", "failed", "skipped", "gap")
_SLOWEST = 10


def page(values: Mapping[str, Any]) -> str:
    """Return the page of what `engine plugins check --json` prints."""
    kit, onnx = values.get("kit"), values.get("onnx")
    name = escape(values["backend"])
    verdict = ("good", "no test failed") if values["ok"] else ("bad", "something failed")
    parts = [
        f"<h1>{name}: <span class={verdict[0]}>{verdict[1]}</span></h1>",
        *([_kit(kit)] if kit else []),
        *(
            _models(title, values[part])
            for part, title in (("mixed", "Mixed placement"), ("models", "Models"))
            if part in values
        ),
        *([_onnx(onnx)] if onnx else []),
        *([_slowest(kit)] if kit else []),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _kit(kit: Mapping[str, Any]) -> str:
    seconds: dict[str, float] = {}
    for test in kit["tests"]:
        seconds[test["level"]] = seconds.get(test["level"], 0.0) + test["seconds"]
    rows = [
        (level, *(counts[outcome] for outcome in _OUTCOMES), f"{seconds[level]:.1f} s")
        for level, counts in kit["levels"].items()
    ]
    said = f"{escape(str(kit['distribution']))} {escape(str(kit['version']))}, {kit['state']}"
    failed = [
        f"<p class=bad>{escape(test['name'])}</p><pre>{escape(test['reason'])}\n"
        f"{escape(test['place'])}</pre>"
        for test in kit["tests"]
        if test["outcome"] == "failed"
    ]
    gaps = [(test["name"], test["reason"]) for test in kit["tests"] if test["outcome"] == "gap"]
    return "\n".join(
        [
            f"<h2>Conformance kit</h2><p>{said}; {kit['seconds']:.0f} s</p>",
            _table(("level", *_OUTCOMES, "time"), rows),
            *(["<h2>Failed</h2>", *failed] if failed else []),
            *(["<h2>Declared gaps</h2>", _table(("test", "reason"), gaps)] if gaps else []),
            *_skipped(kit),
        ]
    )


def _skipped(kit: Mapping[str, Any]) -> list[str]:
    counts: dict[str, int] = {}
    for test in kit["tests"]:
        if test["outcome"] == "skipped":
            counts[test["reason"]] = counts.get(test["reason"], 0) + 1
    rows = list(counts.items())
    return ["<h2>Skipped</h2>", _table(("reason", "tests"), rows)] if rows else []


def _models(title: str, found: Mapping[str, Any]) -> str:
    rows = [
        (
            model["name"],
            _Marked(model["status"], model["status"] in ("within", "elsewhere", "refused")),
            ", ".join(f"{name} {count}" for name, count in model["nodes"].items()),
            "; ".join(f"{output['name']} {_error(output)}" for output in model["outputs"]),
            f"{1000 * model['predict_s']:.2f} ms" if model["predict_s"] else "",
            f"{1000 * model['other_predict_s']:.2f} ms" if model["predict_s"] else "",
            model["reason"],
        )
        for model in found["tests"]
    ]
    targets, other = ", ".join(found["targets"]), found["other"]
    errors, other_time = "largest error of each output", f"time of {other}"
    heads = ("model", "outcome", "nodes on", errors, "time", other_time, "reason")
    return f"<h2>{title}: {escape(targets)}, against {escape(other)}</h2>" + _table(heads, rows)


def _error(output: Mapping[str, Any]) -> str:
    error = output["relative_error"]
    return "equal" if output["verdict"] == "equal" or error is None else f"{error:.1e}"


def _onnx(onnx: Mapping[str, Any]) -> str:
    """Return the ledger: how the suite's tests end, and why those that do not pass."""
    rows = [
        (what, *onnx[key].values())
        for what, key in (("operators", "operators"), ("light models", "light_models"))
    ]
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for test in onnx["tests"]:
        if test["status"] != "passed":
            on = f" on {test['only_on']}" if test["only_on"] else ""
            reasons.setdefault((test["status"], test["reason"], on), []).append(test["name"])
    order = sorted(
        reasons.items(), key=lambda item: (item[0][0] in ("refused", "random"), -len(item[1]))
    )
    ledger = [
        (
            _Marked(status + on, bool(on) or status in ("refused", "random")),
            len(names),
            reason,
            ", ".join(names),
        )
        for (status, reason, on), names in order
    ]
    return "\n".join(
        [
            "<h2>ONNX's own suite</h2>",
            _table(("tests", *onnx["operators"]), rows),
            *(
                ["<h2>Ledger</h2>", _table(("outcome", "tests", "reason", "names"), ledger)]
                if ledger
                else []
            ),
        ]
    )


def _slowest(kit: Mapping[str, Any]) -> str:
    tests = sorted(kit["tests"], key=lambda test: -test["seconds"])[:_SLOWEST]
    rows = [(test["name"], test["level"], f"{test['seconds']:.1f} s") for test in tests]
    return "<h2>The slowest tests</h2>" + _table(("test", "level", "time"), rows)


@dataclass(frozen=True, slots=True)
class _Marked:
    """A cell that is good or bad."""

    text: str
    is_good: bool


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _cell(value: Any) -> str:
    if isinstance(value, _Marked):
        return f"<td class={'good' if value.is_good else 'bad'}>{escape(value.text)}</td>"
    kind = " class=number" if isinstance(value, int) else ""
    return f"<td{kind}>{escape(str(value))}</td>"
