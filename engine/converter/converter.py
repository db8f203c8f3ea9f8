"""Converter: other frameworks' models, as files that Model reads. The API is MindSpore Lite's."""

from __future__ import annotations

import os
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from engine.config.checks import require, require_choice, require_count, require_watchers
from engine.config.settings import Settings, setting
from engine.errors import BackendError, InputError, ModelError
from engine.model import ModelType
from engine.tensor.enums import DataType, FmkType, Format

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.converter.job import Framework, Job, Report
    from engine.types import CancelToken, Progress
    from engine.typing import DecMode

__all__ = ["Converter", "FmkType"]

OptimizedFor: TypeAlias = Literal["none", "general", "gpu_oriented", "ascend_oriented"]
Optimize: TypeAlias = OptimizedFor | Literal["ascend_oriented:910b", "ascend_oriented:default"]

SUFFIXES = {ModelType.MINDIR: ".mindir", ModelType.MINDIR_LITE: ".ms"}
CHIPS = ("default", "910b")
_COMPILED = (".trt", ".engine", ".plan", ".om")
_OTHER_FORMS = (
    ".tflite", ".pb", ".keras", ".h5", ".hdf5", ".pt", ".pt2", ".pth", ".xml", ".ort", ".mlmodel",
)  # fmt: skip
_SHOWN = (
    "weight_fp16", "input_shape", "input_format", "input_data_type", "output_data_type",
    "save_type", "enable_encryption", "infer", "optimize", "device",
)  # fmt: skip
_NOT_ENCRYPTED = "the result is not encrypted: encrypt_key is set, but not enable_encryption"


class Converter(Settings):
    """Turns a model of another framework into a file that Model reads on every backend.

        converter = engine.Converter()
        converter.convert(engine.FmkType.ONNX, "net.onnx", "net")  # writes net.mindir

    Set what the result is to be like, then convert, as often as you like. Only what was assigned
    is done: `input_format` reads NHWC and the data types FLOAT32 from the start, as in MindSpore
    Lite, but a model keeps its own layout and types until one is assigned.

    Use a Converter in one thread at a time; several convert at once. The keys can be set, not read.
    """

    _called = "converter"
    __slots__ = ("_config", "_decrypt_key", "_encrypt_key", "_optimize", "_report")

    def __init__(self) -> None:
        self._config: dict[str, dict[str, str]] = {}
        self._decrypt_key = ""
        self._encrypt_key = ""
        self._optimize = "general"  # with the chip's name
        self._report: Report | None = None

    # ------------------------------------------------------------------------------- what is read

    @property
    def decrypt_key(self) -> str:
        """The key of an encrypted MindIR, in hexadecimal; "" for none. Write-only."""
        raise TypeError("decrypt_key is write-only.")

    @decrypt_key.setter
    def decrypt_key(self, value: str) -> None:
        self._decrypt_key = require("decrypt_key", value, str)

    @setting("AES-GCM")
    def decrypt_mode(self, value: DecMode) -> DecMode:
        """Encryption mode of the MindIR: "AES-GCM" or "AES-CBC"; here "SM4-CBC" too."""
        if value == "SM4-CBC":
            return "SM4-CBC"
        try:
            return require_choice("decrypt_mode", value, "AES-GCM", "AES-CBC")
        except ValueError as error:
            raise ValueError(f"{error} (SM4-CBC can be read too)") from None

    @property
    def input_shape(self) -> dict[str, list[int]]:
        """Shapes by input name, in the model's own layout; -1 for a dim that stays open.

        Inputs that are not named keep theirs. Reading gives a copy.
        """
        shapes: dict[str, list[int]] = vars(self).get("input_shape", {})
        return {name: list(shape) for name, shape in shapes.items()}

    @input_shape.setter
    def input_shape(self, value: dict[str, list[int]]) -> None:
        for name, shape in require("input_shape", value, dict).items():
            require("input_shape key", name, str)
            if not isinstance(shape, list):
                raise TypeError(
                    f"input_shape value must be list, but got {type(shape)} at key {name}."
                )
            for index, dim in enumerate(shape):
                if not isinstance(dim, Integral):
                    raise TypeError(
                        f"input_shape value's element must be int, but got {type(dim)} "
                        f"at index {index}."
                    )
        vars(self)["input_shape"] = {name: [*map(int, shape)] for name, shape in value.items()}

    # ----------------------------------------------------------------------- what the result is

    @setting(Format.NHWC)
    def input_format(self, value: Format) -> Format:
        """The layout of the result's 4-D inputs: NCHW or NHWC. Unassigned: the model's own."""
        layout = require("input_format", value, Format)
        if layout not in (Format.NCHW, Format.NHWC):
            raise ValueError(
                f"input_format must be in [Format.NCHW, Format.NHWC], but got {layout}."
            )
        return layout

    @setting(DataType.FLOAT32)
    def input_data_type(self, value: DataType) -> DataType:
        """The type of the result's inputs. Unassigned, or UNKNOWN: the model's own."""
        return _require_type("input_data_type", value)

    @setting(DataType.FLOAT32)
    def output_data_type(self, value: DataType) -> DataType:
        """The type of the result's outputs. Unassigned, or UNKNOWN: the model's own."""
        return _require_type("output_data_type", value)

    @setting(False)
    def weight_fp16(self, value: bool) -> bool:
        """Store float32 weights as float16: half the file, the same inputs and outputs."""
        return require("weight_fp16", value, bool)

    @setting(ModelType.MINDIR)
    def save_type(self, value: ModelType) -> ModelType:
        """Kind of file to write: MINDIR ends in .mindir, MINDIR_LITE in .ms. Both hold ONNX."""
        return require("save_type", value, ModelType)

    @setting(False)
    def enable_encryption(self, value: bool) -> bool:
        """Encrypt the result with `encrypt_key` (AES-GCM)."""
        return require("enable_encryption", value, bool)

    @property
    def encrypt_key(self) -> str:
        """The result's key: 16 bytes as 32 hexadecimal characters (or 24, 32 bytes). Write-only."""
        raise TypeError("encrypt_key is write-only.")

    @encrypt_key.setter
    def encrypt_key(self, value: str) -> None:
        self._encrypt_key = require("encrypt_key", value, str)

    @setting(False)
    def infer(self, value: bool) -> bool:
        """Run the result once on the cpu backend, with ones; where that fails nothing is written.

        `report.trial` has the outputs.
        """
        return require("infer", value, bool)

    # ---------------------------------------------------------------------------- what it is for

    @setting("general")
    def optimize(self, value: Optimize) -> OptimizedFor:
        """none, general, gpu_oriented, ascend_oriented or ascend_oriented:910b.

        The result notes it and is the same: backends optimise for their device when they build.
        Reads without the chip's name; ascend_oriented sets `device` to Ascend.
        """
        text = require("optimize", value, str)
        kind, colon, chip = text.partition(":")
        if kind not in ("none", "general", "gpu_oriented", "ascend_oriented") or (
            colon and kind != "ascend_oriented"
        ):
            raise ValueError(
                "optimize must be 'none', 'general', 'gpu_oriented', 'ascend_oriented' or "
                f"'ascend_oriented:910b'. Got {text!r}"
            )
        if ":" in chip or "," in chip:
            raise ValueError(f"chip_name must be single. Got {chip!r}")
        if colon and chip not in CHIPS:
            raise ValueError(f"chip_name must be in [{', '.join(CHIPS)}], but got {chip}.")
        self._optimize = text
        if kind == "ascend_oriented":
            self.device = "Ascend"
        return cast("OptimizedFor", kind)

    @setting("")
    def device(self, value: Literal["Ascend"]) -> Literal["Ascend", ""]:
        """ "Ascend"; without effect: the result is the same for every device."""
        return require_choice("device", value, "Ascend")

    @setting(0)
    def device_id(self, value: int) -> int:
        """Number of an NPU; nothing here compiles for one, so nothing reads it."""
        return require_count("device_id", value)

    @setting(0)
    def rank_id(self, value: int) -> int:
        """Number of a rank; nothing here compiles for one, so nothing reads it."""
        return require_count("rank_id", value)

    # -------------------------------------------------------------------------------- converting

    def set_config_info(self, section: str = "", config_info: dict[str, str] | None = None) -> None:
        """Set a section of options, in place of what it was; they win over the file's.

        Nothing happens without both. Sections: see docs/convert.md.
        """
        require("section", section, str)
        if config_info is None:
            return
        for key, value in require("config_info", config_info, dict).items():
            require("config_info key", key, str)
            require("config_info val", value, str)
        if section:
            self._config[section] = dict(config_info)

    def get_config_info(self) -> dict[str, dict[str, str]]:
        """The sections that were set; a copy."""
        return {section: dict(keys) for section, keys in self._config.items()}

    @property
    def report(self) -> Report | None:
        """Report of the last conversion: sizes, inputs, notes, accuracy. None before and if failed.

        An engine.converter.job.Report.
        """
        return self._report

    def convert(
        self,
        fmk_type: Framework,
        model_file: str,
        output_file: str,
        weight_file: str = "",
        config_file: str = "",
        *,
        progress: Progress | None = None,
        cancel: CancelToken | None = None,
    ) -> None:
        """Convert a model, and write the result where it replaces an earlier one whole.

        Prints MindSpore Lite's "CONVERT RESULT SUCCESS:0" when it has.

        fmk_type: the framework that the model comes from, or the name of another installed source;
        the file's content must agree.
        model_file: a file, or the folder of a TensorFlow SavedModel. output_file: without its
        ending, which is added where it is missing; the folder must exist. weight_file: of a Caffe
        model. config_file: sections of options, below those of set_config_info.
        progress, cancel: as in Model.build_from_file, called and read in this thread.

        Raises TypeError for arguments of the wrong type; ModelNotFound, a FileNotFoundError too,
        for a file that is missing; RuntimeError (ModelError) for what cannot be read or
        converted, or a trial run that fails, (BackendError) where there is no backend for that,
        (Cancelled). Then nothing was written.
        """
        from engine.config.reader import configuration
        from engine.converter import sources
        from engine.converter.pipeline import convert
        from engine.formats.given import absent

        if not isinstance(fmk_type, str) or fmk_type not in sources.frameworks().values():
            require("fmk_type", fmk_type, FmkType)
        paths = {"model_file": model_file, "weight_file": weight_file, "config_file": config_file}
        for name, path in {**paths, "output_file": output_file}.items():
            require(name, path, str)
        require_watchers(progress, cancel)
        self._report = None
        for name, path in paths.items():
            if (path or name == "model_file") and not os.path.exists(path):
                failure = f"Perform convert method failed, {name} does not exist! got "
                if name == "config_file":
                    raise ModelError(f"{failure}{path!r}", path)
                raise absent(path, failure)
        config = configuration(config_file, self._config, "convert")
        try:
            job = job_of(self, fmk_type, model_file, output_file, weight_file, config)
            # A user who set a key, or wants another form, may never look at the report.
            for text in (_NOT_ENCRYPTED, _of_other_form(output_file)):
                if text in job.notes:
                    import logging  # rare

                    logging.getLogger("engine").warning("%s: %s", job.output_file, text)
            self._report = convert(job.watched(progress, cancel))
        except (ModelError, InputError, BackendError) as error:
            error.args = (f"Converter model failed! error is {error}",)
            raise
        print("CONVERT RESULT SUCCESS:0")

    def __str__(self) -> str:
        shown = {"config_info": self.get_config_info()}
        shown |= {name: getattr(self, name) for name in _SHOWN}
        return ",\n".join(f"{name}: {value}" for name, value in shown.items()) + "."


def job_of(
    converter: Converter,
    framework: Framework,
    model_file: str,
    output_file: str,
    weight_file: str = "",
    config: Mapping[str, Mapping[str, str]] | None = None,
) -> Job:
    """Return the job that `converter` is set to do, its values checked. Raises ModelError."""
    from engine.converter.job import Job

    assigned = vars(converter)
    notes = []
    encrypt_key = None
    if converter.enable_encryption:
        encrypt_key = _key("encrypt_key", converter._encrypt_key)
        if encrypt_key is None:
            raise ModelError(
                "enable_encryption is set, but encrypt_key is not; set it to 16 bytes as 32 "
                "hexadecimal characters"
            )
    elif converter._encrypt_key:
        notes.append(_NOT_ENCRYPTED)
    if converter.optimize not in ("none", "general"):
        notes.append(
            f"optimize={converter._optimize!r} is noted in the file, which is the same for every "
            "device: backends optimise when they build a model"
        )
    elif converter.device:
        notes.append(f"device={converter.device!r} has no effect: the file is for every device")
    if other_form := _of_other_form(output_file):
        notes.append(other_form)
    return Job(
        framework=framework,
        model_file=Path(model_file),
        output_file=_output(output_file, SUFFIXES[converter.save_type]),
        weight_file=Path(weight_file) if weight_file else None,
        input_shape={name: tuple(dims) for name, dims in converter.input_shape.items()},
        input_format=assigned.get("input_format"),
        input_dtype=_assigned_type(assigned.get("input_data_type")),
        output_dtype=_assigned_type(assigned.get("output_data_type")),
        weight_fp16=converter.weight_fp16,
        infer=converter.infer,
        encrypt_key=encrypt_key,
        decrypt_key=_key("decrypt_key", converter._decrypt_key),
        decrypt_mode=converter.decrypt_mode,
        optimize=converter._optimize,
        config=config or {},
        notes=tuple(notes),
    )


def _require_type(name: str, value: object) -> DataType:
    dtype = require(name, value, DataType)
    allowed = (DataType.FLOAT32, DataType.INT8, DataType.UINT8, DataType.UNKNOWN)
    if dtype not in allowed:
        raise ValueError(f"{name} must be in [{', '.join(map(str, allowed))}], but got {dtype}.")
    return dtype


def _assigned_type(dtype: DataType | None) -> DataType | None:
    return None if dtype is DataType.UNKNOWN else dtype


def _key(name: str, text: str) -> bytes | None:
    """A key's bytes. Messages never quote it."""
    if not text:
        return None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) not in (16, 24, 32) or len(text) != 2 * len(key):
        raise ModelError(
            f"{name} must be 16 bytes as 32 hexadecimal characters (24 and 32 bytes will do), got "
            f"{len(text)} characters"
        )
    return key


def _of_other_form(output_file: str) -> str:
    """Return a note on a name that is of another form of model than the result; "" for others."""
    ending = Path(output_file).suffix.lower()
    if ending in _COMPILED:
        return (
            f"the result is ONNX, not {ending}: a backend compiles it for its device when a Model "
            "is built of it"
        )
    if ending in _OTHER_FORMS:
        return f"the result is ONNX, not {ending}; no other form is written"
    return ""


def _output(text: str, suffix: str) -> Path:
    path = Path(text)
    if not text or text.endswith(os.sep) or path.name in ("", "..") or "\0" in text:
        is_folder = text.endswith(os.sep) and path.name
        hint = f", which is a folder; name the file, as {str(path / 'net')!r}" if is_folder else ""
        raise ModelError(f"output_file must name a file, got {text!r}{hint}")
    return path if path.suffix == suffix else path.with_name(path.name + suffix)
