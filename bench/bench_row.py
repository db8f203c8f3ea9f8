"""How well `engine bench` tells a change from noise: changes are planted, and the verdicts counted.

    python bench/bench_row.py                        side by side: 20 times 3 % slower, 20 times not
    python bench/bench_row.py --mode against         with a saved run whose model is still there
    python bench/bench_row.py --mode reference       with a saved run of the same file
    python bench/bench_row.py --model mlp --plant sleep --times 5 --seconds 20

Each trial is one call of the command, in this process. The second model is a copy of the first
under another name; to plant a change, its predict goes on for 3 % of what it takes at least
(`--plant sleep`: a part of that asleep; for a model that takes 10 ms and more). "found" counts the
verdicts "slower" where a change was planted; "false alarms" are "slower" and "faster" where none
was. Exits 1 where less than 90 % are found or more than 5 % are false alarms. Needs the cpu backend
and the onnx package.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import models
import onnx
from measure import bar, parser_of

from engine import Model
from engine.cli import main as command

MODELS: dict[str, Callable[[Path], Path]] = {
    "mobilenet_v2": models.mobilenet_v2,
    "mlp": lambda folder: models.layers(folder, 512, 4),
    "resnet50": models.resnet50,
}


class Plant:
    """Makes the predicts of one model's file take longer, by a part of what they usually take."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._kind = str(path), kind
        self.change = 0.0
        self._predict = Model.predict
        self._recent_s: deque[float] = deque(maxlen=100)
        self._calls, self._usual_s = 0, 0.0
        Model.predict = lambda model, *given, **named: self(model, *given, **named)  # type: ignore[method-assign]

    def __call__(self, model: Model, *given: Any, **named: Any) -> Any:
        if not self.change or model.model_path_ != self._path:
            return self._predict(model, *given, **named)
        begin = perf_counter()
        result = self._predict(model, *given, **named)
        now = perf_counter()
        self._recent_s.append(now - begin)
        self._calls += 1
        if self._calls % 50 == 1:  # seldom: it takes 5 us
            self._usual_s = min(self._recent_s)  # others' work makes the rest longer
        more_s = self.change * self._usual_s
        end = now + more_s
        if self._kind == "sleep":
            sleep(0.5 * more_s)  # it comes back later than it says
        while perf_counter() < end:
            pass
        return result


def said(*arguments: object) -> dict[str, Any]:
    """Return the JSON of a call of `engine bench`."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        status = command(["bench", *map(str, arguments), "--json"])
    if status:
        raise SystemExit(error.getvalue())
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def trial(
    mode: str, first: Path, second: Path, options: list[str], plant: Callable[[], None]
) -> tuple[str, float]:
    """Return the verdict on the second model, and its ratio. plant: plants the change."""
    if mode == "side":
        plant()
        change = said(first, second, *options)["contenders"][2]
    else:
        saved = first.with_name("run.json")
        if mode == "against":  # its times are not used: the model itself is run again
            said(first, *options, "--duration", 3, "--save", saved)
        else:
            said(second, *options, "--save", saved)
        plant()
        changes = said(second, *options, "--against", saved)["changes"]
        change = changes["direct" if mode == "against" else "by_reference"]
    return change["verdict"], change["ratio"]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--mode", choices=("side", "against", "reference"), default="side")
    parser.add_argument("--model", choices=MODELS, default="mobilenet_v2")
    parser.add_argument("--plant", choices=("wait", "sleep"), default="wait")
    parser.add_argument("--change", type=float, default=3.0, help="per cent")
    parser.add_argument("--times", type=int, default=20, help="of each kind")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each trial, at most")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    options = ["--duration", str(arguments.seconds), "--threads", str(arguments.threads)]
    counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    took: list[float] = []
    show = bar(f"{arguments.model}, {arguments.mode}")
    with tempfile.TemporaryDirectory() as folder:
        first = MODELS[arguments.model](Path(folder))
        second = Path(folder, "second.onnx")
        proto = onnx.load(first)
        proto.doc_string = "the same once more"
        onnx.save(proto, second)
        plant = Plant(second, arguments.plant)

        for number in range(2 * arguments.times):
            is_planted = number % 2 == 0
            change = arguments.change / 100 if is_planted else 0.0
            plant.change = 0.0
            begin = perf_counter()
            verdict, ratio = trial(
                arguments.mode, first, second, options, partial(setattr, plant, "change", change)
            )
            took.append(perf_counter() - begin)
            counts[is_planted][verdict] += 1
            kind = "planted" if is_planted else "none"
            line = f"{kind:8} {verdict:12} {ratio:.3f} {took[-1]:6.1f} s"
            print(line, file=sys.stderr, flush=True)
            if show:
                show(number + 1, 2 * arguments.times)
    found = counts[True]["slower"]
    alarms = counts[False]["slower"] + counts[False]["faster"]
    for is_planted, name in ((True, f"{arguments.change:g} % planted"), (False, "none planted")):
        verdicts = ", ".join(f"{verdict} {count}" for verdict, count in counts[is_planted].items())
        print(f"{name:16} {verdicts}")
    print(f"found {found} of {arguments.times}, false alarms {alarms} of {arguments.times}")
    print(f"a trial takes {statistics.median(took):.0f} s (median)")
    raise SystemExit(found < 0.9 * arguments.times or alarms > 0.05 * arguments.times)


if __name__ == "__main__":
    main()
