"""The converter's configuration of quantization, as MindSpore Lite names it: sections to values.

Each section is a dataclass whose fields are its keys; the reader beside a field's type turns text
into a value or says what is wrong with it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated, Any, TypeAlias, TypeVar, get_type_hints

from engine.config.text import did_you_mean
from engine.errors import ModelError
from engine.options import nearest

Config: TypeAlias = Mapping[str, Mapping[str, str]]
_Reader: TypeAlias = Callable[[str], Any]
_Section = TypeVar("_Section")


class Kind(StrEnum):
    """Kinds of quantization."""

    FULL = "FULL_QUANT"  # weights and activations, with ranges from calibration data
    WEIGHT = "WEIGHT_QUANT"  # weights only; they are float32 again where they are used
    DYNAMIC = "DYNAMIC_QUANT"  # weights now, activations by their range in each predict


class _Wrong(Exception):
    """A value that a key cannot have; says what was expected."""


def _one_of(*names: str) -> _Reader:
    def read(text: str) -> str:
        if text.upper() not in names:
            near = nearest(text, names)
            hint = f"; did you mean {near}?" if near else ""
            raise _Wrong(f"expected {' or '.join(names)}, got {text!r}{hint}")
        return text.upper()

    return read


def _kind(text: str) -> Kind:
    return Kind(_one_of(*Kind)(text))


def _whole(lowest: int, highest: int) -> _Reader:
    def read(text: str) -> int:
        if not text.isdecimal() or not lowest <= int(text) <= highest:
            raise _Wrong(f"expected a whole number in {lowest}..{highest}, got {text!r}")
        return int(text)

    return read


def _truth(text: str) -> bool:
    return bool(_one_of("TRUE", "FALSE")(text) == "TRUE")


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (_bare(part) for part in text.split(","))))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.strip("[]() ").split(","))
    except ValueError:
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise _Wrong(f"expected numbers like [127.5, 127.5, 127.5], got {text!r}")
    return numbers


_SIDE = _whole(1, 65535)


@dataclass(frozen=True, slots=True)
class Common:
    """[common_quant_param]. The two `min_` keys are for weight quantization only."""

    quant_type: Annotated[Kind | None, _kind] = None
    bit_num: Annotated[int, _whole(0, 16)] = 8
    min_quant_weight_size: Annotated[int, _whole(0, 65535)] = 0
    min_quant_weight_channel: Annotated[int, _whole(0, 65535)] = 16
    skip_quant_node: Annotated[tuple[str, ...], _names] = ()
    reduce_range: Annotated[bool | None, _truth] = None
    debug_info_save_path: Annotated[str, str] = ""
    enable_encode: Annotated[bool, _truth] = False
    workspace: Annotated[str, str] = ""


@dataclass(frozen=True, slots=True)
class Full:
    """[full_quant_param]."""

    activation_quant_method: Annotated[str, _one_of("MAX_MIN", "KL", "REMOVAL_OUTLIER")] = "MAX_MIN"
    bias_correction: Annotated[bool, _truth] = False
    per_channel: Annotated[bool, _truth] = True
    target_device: Annotated[str, _one_of("NVGPU", "ASCEND", "DSP", "KIRIN")] = ""
    smooth_alpha: Annotated[str, str] = ""
    enable_smooth_shift: Annotated[bool, _truth] = False


@dataclass(frozen=True, slots=True)
class Weight:
    """[weight_quant_param]."""

    dequant_strategy: Annotated[str, _one_of("ON_THE_FLY")] = ""
    per_channel: Annotated[bool, _truth] = True
    update_mindir: Annotated[bool, _truth] = False
    max_segments: Annotated[int, _whole(0, 65535)] = 0
    bias_correction: Annotated[bool, _truth] = False


@dataclass(frozen=True, slots=True)
class Dynamic:
    """[dynamic_quant_param]. ALWC: a scale for each activation tensor and each weight channel."""

    quant_strategy: Annotated[str, _one_of("ALWC", "ACWL")] = "ALWC"


@dataclass(frozen=True, slots=True)
class Data:
    """[data_preprocess_param]: where calibration data is and what is done to images."""

    calibrate_path: Annotated[str, str] = ""
    calibrate_size: Annotated[int | None, _whole(1, 65535)] = None
    input_type: Annotated[str, _one_of("BIN", "IMAGE")] = ""
    image_to_format: Annotated[str, _one_of("RGB", "GRAY", "BGR")] = ""
    normalize_mean: Annotated[tuple[float, ...], _numbers] = ()
    normalize_std: Annotated[tuple[float, ...], _numbers] = ()
    resize_width: Annotated[int | None, _SIDE] = None
    resize_height: Annotated[int | None, _SIDE] = None
    resize_method: Annotated[str, _one_of("LINEAR", "NEAREST", "CUBIC")] = "LINEAR"
    center_crop_width: Annotated[int | None, _SIDE] = None
    center_crop_height: Annotated[int | None, _SIDE] = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the configuration says about quantization, checked; notes for the user."""

    common: Common
    full: Full
    weight: Weight
    dynamic: Dynamic
    data: Data
    notes: tuple[str, ...]

    @property
    def kind(self) -> Kind:
        """Kind of quantization that the configuration asks for."""
        assert self.common.quant_type is not None  # checked
        return self.common.quant_type

    @property
    def is_for_accelerator(self) -> bool:
        """True if the model is for a device that is not a CPU."""
        return self.kind is Kind.FULL and self.full.target_device in ("NVGPU", "ASCEND")

    @property
    def has_reduced_range(self) -> bool:
        """True if weights of products have 7 bits, with which no processor's products saturate.

        x86 processors without VNNI add two products of a uint8 and an int8 in 16 bits:
        2 * 255 * 64 fits, and 65 in place of 64 does not. Products of two uint8 are exact there,
        and slower on every x86 processor.
        """
        given = self.common.reduce_range
        return not self.is_for_accelerator if given is None else given


_REFUSED = {
    "mixed_bit_weight_quant_param": "mixed-bit weights are not supported; use [common_quant_param] "
    "bit_num=8, or bit_num=4 for smaller weights",
    "transform_quant_param": "turning a quantized model back is not supported; convert the "
    "original float32 model",
}

SECTIONS = (
    "common_quant_param", "full_quant_param", "weight_quant_param", "dynamic_quant_param",
    *_REFUSED,
)  # fmt: skip
"""A configuration that has one of these asks for quantization."""

_CLASSES = {
    "common_quant_param": Common,
    "full_quant_param": Full,
    "weight_quant_param": Weight,
    "dynamic_quant_param": Dynamic,
    "data_preprocess_param": Data,
}
KEYS: Mapping[str, tuple[str, ...]] = {
    section: tuple(field.name for field in fields(kind)) for section, kind in _CLASSES.items()
}
"""The keys of each section that is read."""

_NO_EFFECT = {
    "enable_encode": "weights are stored as plain integers",
    "workspace": "large models need no folder of their own",
    "bias_correction": "biases stay as they are",
    "smooth_alpha": "activations are not smoothed",
    "enable_smooth_shift": "activations are not smoothed",
    "dequant_strategy": "the backend decides when weights become float32",
    "update_mindir": "the result is always written as one new model",
    "max_segments": "weights are not encoded",
}


def read_settings(config: Config) -> Settings:
    """Read all sections that have to do with quantization.

    Raises ModelError for an unknown value, and for what is known and cannot be done; it says what
    to use instead. Unknown keys, and known ones without effect, become notes.
    """
    for section, why in _REFUSED.items():
        if config.get(section):
            raise ModelError(f"[{section}]: {why}")
    notes: list[str] = []
    found: list[Any] = [_read(kind, name, config, notes) for name, kind in _CLASSES.items()]
    common, full, weight, dynamic, data = found
    settings = Settings(common, full, weight, dynamic, data, tuple(notes))
    _check(settings)
    if settings.kind is Kind.WEIGHT and settings.common.reduce_range is not None:
        text = "[common_quant_param] reduce_range has no effect: WEIGHT_QUANT computes in float32"
        return replace(settings, notes=(*settings.notes, text))
    return settings


def _check(settings: Settings) -> None:
    """Raise ModelError where values do not go together."""
    kind, bits, data = settings.common.quant_type, settings.common.bit_num, settings.data
    if kind is None:
        raise ModelError(
            f"[common_quant_param] quant_type is missing; expected {' or '.join(Kind)}"
        )
    allowed = (4, 8) if kind is Kind.WEIGHT else (8,)
    if bits not in allowed:
        instead = {0: " (0, mixed bits, is not supported)", 16: "; for 16 bits use weight_fp16"}
        wanted = " or ".join(map(str, allowed))
        raise ModelError(
            f"[common_quant_param] bit_num: expected {wanted} for {kind}, got {bits}"
            f"{instead.get(bits, '')}"
        )
    if kind is Kind.DYNAMIC and settings.dynamic.quant_strategy == "ACWL":
        raise ModelError(
            "[dynamic_quant_param] quant_strategy: ACWL, a scale for each activation channel, is "
            "not supported; use ALWC"
        )
    if kind is Kind.FULL and not data.calibrate_path:
        raise ModelError(
            "[data_preprocess_param] calibrate_path is missing: FULL_QUANT needs calibration data; "
            "give calibrate_path=input:/folder and input_type, or use DYNAMIC_QUANT"
        )
    if data.calibrate_path and not data.input_type:
        raise ModelError("[data_preprocess_param] input_type is missing; expected BIN or IMAGE")
    for one, other in (
        ("resize_width", "resize_height"),
        ("center_crop_width", "center_crop_height"),
    ):
        if (getattr(data, one) is None) != (getattr(data, other) is None):
            raise ModelError(f"[data_preprocess_param] {one} and {other} go together; give both")
    if 0 in data.normalize_std:
        raise ModelError(
            "[data_preprocess_param] normalize_std: expected numbers other than 0, got "
            f"{list(data.normalize_std)}"
        )


def _read(shape: type[_Section], section: str, config: Config, notes: list[str]) -> _Section:
    hints = get_type_hints(shape, include_extras=True)
    readers: dict[str, _Reader] = {key: hint.__metadata__[0] for key, hint in hints.items()}
    values: dict[str, Any] = {}
    for key, text in config.get(section, {}).items():
        bare = _bare(text)
        if key not in readers:
            text = _unknown(section, key, readers)
            logging.getLogger("engine").warning(text)
            notes.append(text)
        elif bare:  # an empty value is one that was not given
            try:
                values[key] = readers[key](bare)
            except _Wrong as error:
                raise ModelError(f"[{section}] {key}: {error}") from None
            if values[key] and key in _NO_EFFECT:
                notes.append(f"[{section}] {key} has no effect: {_NO_EFFECT[key]}")
    return shape(**values)


def unknown(config: Config) -> str:
    """Return a line on the first key that no section of quantizing has; "" for none."""
    return next(
        (
            _unknown(section, key, known)
            for section, known in KEYS.items()
            for key in config.get(section, {})
            if key not in known
        ),
        "",
    )


def _unknown(section: str, key: str, known: Collection[str]) -> str:
    hint = did_you_mean(key, known) or f"known: {', '.join(known)}"
    return f"configuration key [{section}] {key} is unknown and not read; {hint}"


def _bare(text: str) -> str:
    return text.strip().strip("\"'").strip()
