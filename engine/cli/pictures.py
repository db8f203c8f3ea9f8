"""Images as a model's input: sizes, channels, layout and range, by options or the metadata.

The metadata is what ONNX defines for images (docs/MetadataProps.md there): Image.BitmapPixelFormat
says the channels and their order, Image.NominalPixelRange what 0 to 255 become.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.backends.install import pip_install
from engine.cli.input_files import InputFile
from engine.errors import InputError, one_line
from engine.tensor.description import Array
from engine.types import DType, TensorSpec

if TYPE_CHECKING:
    from PIL.Image import Image

Shape = tuple[int, ...]


class Layout(StrEnum):
    """The places of an image's channels."""

    NCHW = "NCHW"
    NHWC = "NHWC"


class Resize(StrEnum):
    """The ways to fit an image of another size."""

    STRETCH = "stretch"
    CROP = "crop"
    PAD = "pad"


@dataclass(frozen=True, slots=True)
class Preparation:
    """The user's wishes for images: pixels, 0 to 255, become (pixel * scale - mean) / std.

    None, and () for mean and std: what the model's metadata says, or else what its input suggests.
    """

    layout: Layout | None = None
    resize: Resize = Resize.STRETCH
    scale: float | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


class _Frame(NamedTuple):
    """The form in which an input takes an image; None for a size that is open."""

    layout: Layout
    channels: int
    height: int | None
    width: int | None
    has_batch: bool


_FORMATS = {
    "gray8": ("L", False), "rgb8": ("RGB", False), "bgr8": ("RGB", True),
    "rgba8": ("RGBA", False), "bgra8": ("RGBA", True),
}  # fmt: skip
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_CHANNELS = {mode: channels for channels, mode in _MODES.items()}
_RANGES = {  # (scale, offset), and the range in words
    "nominalrange_0_255": (1.0, 0.0, "0..255"),
    "normalized_0_1": (1 / 255, 0.0, "0..1"),
    "normalized_1_1": (2 / 255, -1.0, "-1..1"),
    "nominalrange_16_235": (219 / 255, 16.0, "16..235"),
}


def read_picture(
    file: InputFile,
    spec: TensorSpec,
    shape: Shape | None,
    wishes: Preparation,
    metadata: Mapping[str, str],
) -> tuple[Array, str]:
    """Return an image as the input takes it, and what was done in words.

    shape: what the user says the input's is, else what it declares. metadata: the model's. Raises
    InputError for an input that takes no image and a file that is none.
    """
    known = {key.lower(): value.lower() for key, value in metadata.items()}
    mode, is_reversed = _FORMATS.get(known.get("image.bitmappixelformat", ""), ("", False))
    frame = _frame(file, spec, shape, wishes.layout, _CHANNELS.get(mode, 0))
    mode = _MODES[frame.channels]
    opened, done = _opened(file)
    image = _in_bytes(file, opened, done).convert(mode)
    image = _fitted(image, frame, wishes.resize, done)
    pixels = np.asarray(image, np.float32).reshape(image.height, image.width, frame.channels)
    order = mode
    if is_reversed:
        pixels = pixels[..., [2, 1, 0, *range(3, frame.channels)]]
        order = "BGR" + mode[3:]
    done.append(f"channels {'gray' if mode == 'L' else order}")
    pixels = _scaled(file, spec, pixels, wishes, known, done)
    if frame.layout is Layout.NCHW:
        pixels = pixels.transpose(2, 0, 1)
    layout = str(frame.layout)
    done.append(layout if frame.has_batch else layout[1:])
    if frame.has_batch:
        pixels = pixels[None]
    return np.ascontiguousarray(pixels), ", ".join(done)


def _frame(
    file: InputFile, spec: TensorSpec, shape: Shape | None, layout: Layout | None, channels: int
) -> _Frame:
    """Return what an input takes, by its shape. Raises InputError where that is no image."""
    declared = [dim if isinstance(dim, int) else None for dim in shape or spec.shape or ()]
    rank = len(declared)
    is_number = "float" in spec.dtype or spec.dtype is DType.UINT8
    if is_number and rank in (3, 4) and (rank == 3 or declared[0] in (1, None)):
        allowed = (channels,) if channels else (3, 1, 4)
        sizes = declared[-3:]
        # An axis that is open has the channels only if no other has their number.
        for wanted, found in ((allowed, 0), ((None,), channels or 3)):
            for candidate in (layout,) if layout else Layout:
                place = 0 if candidate is Layout.NCHW else 2
                if sizes[place] in wanted:
                    height, width = sizes[:place] + sizes[place + 1 :]
                    return _Frame(candidate, sizes[place] or found, height, width, rank == 4)
    text = f"but input {spec.name!r} is {spec if shape is None else [*shape]}"
    if is_number and rank == 4 and declared[0] not in (0, 1, None):
        raise InputError(
            f"{file}: is one image, {text}; give {declared[0]}, with commas between: "
            f"--input {spec.name}=a.png,b.png",
            spec.name,
        )
    of_channels = f" of {channels} channels" if channels else ""
    raise InputError(
        f"{file}: is an image, {text}, and not one image{of_channels}: floats or uint8, NCHW or "
        "NHWC, with 1, 3 or 4 channels and a batch of 1; make the array in Python and give it as "
        ".npy",
        spec.name,
    )


def _opened(file: InputFile) -> tuple[Image, list[str]]:
    """Return an image, turned as its EXIF data say, and what was read in words."""
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError(
            f"{file}: reading images needs Pillow, which is not installed; "
            f"run: {pip_install('image')}"
        ) from error
    try:
        with file.open() as held:
            opened = Image.open(held)
            opened.load()
            done = [f"{opened.width}x{opened.height} {opened.mode}"]
            frames = getattr(opened, "n_frames", 1)
            if frames > 1:
                done.append(f"the first of {frames} frames")
            return _upright(opened, done), done
    # Errors of Pillow's readers for a damaged file, and its guard against huge ones.
    except (OSError, ValueError, TypeError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{file}: not a readable image: {error}") from error


def _upright(opened: Image, done: list[str]) -> Image:
    """Return an image as its camera was held."""
    from PIL import ExifTags, ImageOps

    try:
        orientation = opened.getexif().get(ExifTags.Base.Orientation, 1)
        if orientation not in range(2, 9):
            return opened
        turned = ImageOps.exif_transpose(opened)
    except Exception as error:  # of many kinds, for data that no two cameras write alike
        done.append(f"not turned: its EXIF data cannot be read ({one_line(error)})")
        return opened
    turned.format = opened.format
    done.append(f"turned upright (EXIF orientation {orientation})")
    return turned


def _in_bytes(file: InputFile, opened: Image, done: list[str]) -> Image:
    """Return an image whose pixels are 0 to 255; Pillow would cut off what is above."""
    is_wide = opened.mode.startswith("I;16") or (opened.mode == "I" and opened.format == "PNG")
    if not is_wide and opened.mode not in ("I", "F"):
        return opened
    from PIL import Image

    pixels = np.asarray(opened)
    if is_wide:
        done.append("0..65535 to 0..255")
        return Image.fromarray(np.rint(pixels / 257).astype(np.uint8))
    low, high = pixels.min(), pixels.max()
    if not (low >= 0 and high <= 255):
        raise InputError(
            f"{file}: expected pixels from 0 to 255, got {low:g} to {high:g}; make the array in "
            "Python and give it as .npy"
        )
    return opened


def _fitted(image: Image, frame: _Frame, how: Resize, done: list[str]) -> Image:
    size = (frame.width or image.width, frame.height or image.height)
    if size == image.size:
        return image
    from PIL import Image, ImageOps

    bilinear = Image.Resampling.BILINEAR
    done.append(f"to {size[0]}x{size[1]} by {how} (bilinear)")
    if how is Resize.CROP:
        return ImageOps.fit(image, size, bilinear)
    if how is Resize.PAD:
        return ImageOps.pad(image, size, bilinear)
    return image.resize(size, bilinear)


def _scaled(
    file: InputFile,
    spec: TensorSpec,
    pixels: Array,
    wishes: Preparation,
    known: Mapping[str, str],
    done: list[str],
) -> Array:
    """Return pixels, 0 to 255, in the input's range and type."""
    is_whole = spec.dtype is DType.UINT8
    usual = "nominalrange_0_255" if is_whole else "normalized_0_1"
    named = known.get("image.nominalpixelrange", "")
    scale, offset, words = _RANGES.get(named, _RANGES[usual])
    if (is_whole and offset < 0) or (is_whole and 0 < scale < 0.1):
        scale, offset, words = _RANGES[usual]
    if wishes.scale is not None:
        scale, offset, words = wishes.scale, 0.0, f"0..{255 * wishes.scale:g}"
    pixels = pixels * np.float32(scale) + np.float32(offset)
    done.append(f"values {words}")
    channels = pixels.shape[-1]
    for option, numbers in (("--mean", wishes.mean), ("--std", wishes.std)):
        if numbers and len(numbers) not in (1, channels):
            raise InputError(
                f"{option}: expected 1 or {channels} numbers, one a channel of input "
                f"{spec.name!r}, got {len(numbers)}",
                spec.name,
            )
        if numbers:
            done.append(f"{option[2:]} {', '.join(f'{number:g}' for number in numbers)}")
    if wishes.mean:
        pixels = pixels - np.asarray(wishes.mean, np.float32)
    if wishes.std:
        pixels = pixels / np.asarray(wishes.std, np.float32)
    if not is_whole:
        return pixels.astype(spec.dtype.numpy)
    rounded = np.rint(pixels)
    if rounded.min(initial=0) < 0 or rounded.max(initial=0) > 255:
        raise InputError(
            f"{file}: input {spec.name!r} is uint8, and with --scale, --mean and --std values go "
            f"from {rounded.min():g} to {rounded.max():g}; leave them out",
            spec.name,
        )
    return rounded.astype(np.uint8)
