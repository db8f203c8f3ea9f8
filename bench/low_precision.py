"""Measure low precision on the CPU: time, memory and error of each form of a model over float32.

    python bench/low_precision.py                  every network, 30 rounds
    python bench/low_precision.py decoder -n 60    one network, more rounds

Of a BERT-like encoder (6 layers of 768, 128 tokens), ResNet-50, and one step of a decoder (6 layers
of 768, 128 tokens before). They are converted with WEIGHT_QUANT (8 and 4 bits), DYNAMIC_QUANT and
FULL_QUANT; "bfloat16" is that of the OpenVINO backend (examples/third_party), where it is
installed. Baseline: `Model.predict` of the float32 model on the cpu backend. One thread, CPU time.

"file": the bytes of the converted model over those of the original. "memory": what a process holds
after a predict, without what it holds before the load (private memory), over the same of float32.
"error": the largest difference from the float32 model over the largest value, of the first output;
float32 itself is within 1e-5 of float64. Random weights: real ones, which outliers and layers
with structure make harder or easier to round, differ. Needs the cpu backend and the extra
`quantize`. `--json` for programs.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path

import models
import numpy as np
import onnx
from measure import Row, bar, compare, parser_of, report

import engine

AT_MOST = 0.6
NETWORKS: dict[str, Callable[[Path], Path]] = {
    "bert": lambda folder: models.bert_like(folder, hidden=768),
    "resnet50": models.resnet50,
    "decoder": models.decoder,
}
FORMS: dict[str, dict[str, str]] = {
    "weights int8": {"quant_type": "WEIGHT_QUANT"},
    "weights int4": {"quant_type": "WEIGHT_QUANT", "bit_num": "4"},
    "dynamic int8": {"quant_type": "DYNAMIC_QUANT", "reduce_range": "false"},
    "int8": {"quant_type": "FULL_QUANT", "reduce_range": "false"},
}
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Form:
    """A form of a network. file, memory, error: as the table says; memory None if not measured."""

    what: str
    ratio: float
    file: float
    memory: float | None
    error: float


def samples(path: Path, count: int) -> list[Arrays]:
    random = np.random.default_rng(0)
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in onnx.load(path).graph.input
    }
    return [
        {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(count)
    ]


def converted(path: Path, what: str, settings: dict[str, str]) -> Path | None:
    """Return the model in a form; None where the converter finds nothing to quantize."""
    converter = engine.Converter()
    converter.set_config_info("common_quant_param", settings)
    if settings["quant_type"] == "FULL_QUANT":
        places = []
        for index, sample in enumerate(samples(path, 8)):
            for name, array in sample.items():
                folder = path.with_suffix("") / name
                folder.mkdir(parents=True, exist_ok=True)
                np.save(folder / f"{index}.npy", array)
                places.append(f"{name}:{folder}")
        data = {"calibrate_path": ",".join(dict.fromkeys(places)), "input_type": "BIN"}
        converter.set_config_info("data_preprocess_param", data)
    file = path.with_name(f"{path.stem}_{what.replace(' ', '_')}")
    try:
        with redirect_stdout(StringIO()):
            converter.convert(engine.FmkType.ONNX, str(path), str(file))
    except engine.errors.ModelError as error:
        print(f"{path.stem}, {what}: {error}", file=sys.stderr)
        return None
    return next(found for found in path.parent.glob(f"{file.name}.*"))


MEMORY = """
import sys
from pathlib import Path
import numpy as np
import engine
def private():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
warm = engine.load(sys.argv[2], target="cpu", threads=1)
warm.predict([np.zeros([1, 16], "f")])
before = private()
model = engine.load(sys.argv[1], target="cpu", threads=1)
model.predict({i.name: np.zeros(i.shape, "f") for i in model.inputs})
print(private() - before)
"""


def memory(path: Path, tiny: Path) -> int:
    """Return the kilobytes that a process takes for a model."""
    command = [sys.executable, "-c", MEMORY, str(path), str(tiny)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def bfloat16(path: Path) -> engine.Model | None:
    """Return the model in OpenVINO's bfloat16; None without its backend or such a processor."""
    try:
        capable = import_module("openvino").Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        settings = {"openvino_context": {"arithmetic": "bfloat16"}}
        model = engine.load(path, target="openvino", threads=1, config=settings)
    except (ImportError, engine.errors.EngineError) as error:
        print(f"no bfloat16: {error}", file=sys.stderr)
        return None
    return model if "BF16" in capable else None


def measured(name: str, folder: Path, rounds: int) -> tuple[list[Row], list[Form]]:
    path, tiny = NETWORKS[name](folder), models.tiny(folder)
    [x, *others] = samples(path, 4)
    floats = engine.load(path, target="cpu", threads=1)
    expected = [floats.predict(sample)[0].get_data_to_numpy() for sample in (x, *others)]
    kilobytes = memory(path, tiny)
    contenders: dict[str, tuple[Callable[[], object], float | None]] = {}
    facts: dict[str, tuple[float, float | None, float]] = {}

    def error(model: engine.Model) -> float:
        found = [model.predict(sample)[0].get_data_to_numpy() for sample in (x, *others)]
        pairs = zip(found, expected, strict=True)
        return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)

    for what, settings in FORMS.items():
        file = converted(path, what, settings)
        if file is None:
            continue
        model = engine.load(file, target="cpu", threads=1)
        contenders[f"{name}, {what}"] = (lambda m=model: m.predict(x), AT_MOST)
        facts[f"{name}, {what}"] = (
            file.stat().st_size / path.stat().st_size,
            memory(file, tiny) / kilobytes,
            error(model),
        )
    if (brief := bfloat16(path)) is not None:
        contenders[f"{name}, bfloat16"] = (lambda: brief.predict(x), AT_MOST)
        facts[f"{name}, bfloat16"] = (1.0, None, error(brief))
    begin = time.perf_counter()
    floats.predict(x)
    rows = compare(
        lambda: floats.predict(x),
        contenders,
        rounds=rounds,
        calls=max(1, int(0.02 / (time.perf_counter() - begin))),
        is_warm=True,
        clock=time.process_time,
        progress=bar(name),
    )
    forms = [Form(row.what, row.ratio, *facts[row.what]) for row in rows if row.what in facts]
    return rows, forms


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", metavar="network", help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("-n", "--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if wrong := [name for name in given.networks if name not in NETWORKS]:
        parser.error(f"no network {wrong[0]!r}: expected {', '.join(NETWORKS)}")
    logging.disable(logging.WARNING)  # of ONNX Runtime's quantizers
    rows, forms = [], []
    for name in given.networks or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            more, found = measured(name, Path(folder), given.rounds)
        rows += more
        forms += found
    if given.json:
        print(json.dumps({"rows": [asdict(r) for r in rows], "forms": [asdict(f) for f in forms]}))
        return
    report(rows, as_json=False)
    print(f"\n{'form':<28}{'time':>7}{'file':>7}{'memory':>9}{'error':>10}")
    for form in forms:
        held = "" if form.memory is None else f"{form.memory:.2f}"
        print(f"{form.what:<28}{form.ratio:>7.2f}{form.file:>7.2f}{held:>9}{form.error:>10.1e}")


if __name__ == "__main__":
    main()
