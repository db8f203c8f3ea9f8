"""Images as a model's input, as [data_preprocess_param] says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.converter.quantize.runtime import needed
from engine.converter.quantize.settings import Data
from engine.errors import InputError, ModelError
from engine.formats.arrays import Array
from engine.types import TensorSpec

_CHANNELS = {"RGB": 3, "BGR": 3, "GRAY": 1}


@dataclass(frozen=True, slots=True)
class _Layout:
    """Layout of an input's channels: first (NCHW) or last; sizes are None where they are open."""

    channels: int
    first: bool
    height: int | None
    width: int | None
    batch: int | None  # None where the input has no such axis


class Picture:
    """Turns image files into arrays: channels, resize, centre crop, normalisation, layout."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._image = needed("PIL.Image", "calibrating with images")

    def check(self, spec: TensorSpec) -> None:
        """Raise ModelError where images, prepared so, cannot be this input."""
        layout, data = self._layout(spec), self._data
        for key in ("normalize_mean", "normalize_std"):
            numbers = getattr(data, key)
            if numbers and len(numbers) not in (1, layout.channels):
                raise ModelError(
                    f"[data_preprocess_param] {key}: input {spec.name!r} has {layout.channels} "
                    f"channels: expected {layout.channels} numbers, got {len(numbers)}"
                )
        if not np.issubdtype(spec.dtype.numpy, np.floating) and (
            data.normalize_mean or data.normalize_std
        ):
            raise ModelError(
                f"[data_preprocess_param] normalize_mean, normalize_std: input {spec.name!r} is "
                f"{spec}, whole numbers; leave them out"
            )

    def read(self, path: Path, spec: TensorSpec) -> Array:
        """Read the image in `path` as a value of the input; a batch larger than 1 repeats it."""
        layout, data = self._layout(spec), self._data
        try:
            with self._image.open(path) as file:
                image = file.convert("L" if layout.channels == 1 else "RGB")
        # Errors of Pillow's readers for a damaged file, and its guard against huge ones.
        except (OSError, ValueError, SyntaxError, self._image.DecompressionBombError) as error:
            raise InputError(f"{path}: not a readable image: {error}", spec.name) from error
        if data.resize_width is not None:
            filters = self._image.Resampling
            method = {"LINEAR": filters.BILINEAR, "CUBIC": filters.BICUBIC}.get(
                data.resize_method, filters.NEAREST
            )
            image = image.resize((data.resize_width, data.resize_height), method)
        if data.center_crop_width is not None and data.center_crop_height is not None:
            width, height = data.center_crop_width, data.center_crop_height
            if width > image.width or height > image.height:
                raise InputError(
                    f"{path}: center_crop_width x center_crop_height: expected at most "
                    f"{image.width}x{image.height}, the image's size, got {width}x{height}",
                    spec.name,
                )
            left, top = (image.width - width) // 2, (image.height - height) // 2
            image = image.crop((left, top, left + width, top + height))
        if layout.width not in (None, image.width) or layout.height not in (None, image.height):
            raise InputError(
                f"{path}: input {spec.name!r} is {spec}: expected {layout.width}x{layout.height} "
                f"pixels, got {image.width}x{image.height}; set resize_width and resize_height",
                spec.name,
            )
        pixels: Array = np.asarray(image, np.float32).reshape(
            image.height, image.width, layout.channels
        )
        if data.image_to_format == "BGR":
            pixels = pixels[..., ::-1]
        if data.normalize_mean:
            pixels = pixels - np.asarray(data.normalize_mean, np.float32)
        if data.normalize_std:
            pixels = pixels / np.asarray(data.normalize_std, np.float32)
        if layout.first:
            pixels = pixels.transpose(2, 0, 1)
        if layout.batch is not None:
            pixels = np.repeat(pixels[None], layout.batch, axis=0)
        return np.ascontiguousarray(pixels, spec.dtype.numpy)

    def _layout(self, spec: TensorSpec) -> _Layout:
        """Read an input's layout off its shape; ModelError where no image fits it."""
        sizes = [dim if isinstance(dim, int) else None for dim in spec.shape or ()]
        wanted = _CHANNELS.get(self._data.image_to_format)
        allowed = (3, 1) if wanted is None else (wanted,)
        if len(sizes) in (3, 4):
            batch = (sizes[0] or 1) if len(sizes) == 4 else None
            one, two, three = sizes[-3:]
            if one in allowed:
                return _Layout(one or 1, True, two, three, batch)
            if three in allowed:
                return _Layout(three or 1, False, one, two, batch)
        setting = f"image_to_format={self._data.image_to_format}: " if wanted else ""
        raise ModelError(
            f"input_type=IMAGE: {setting}input {spec.name!r} is {spec}: expected an image of "
            f"{' or '.join(map(str, allowed))} channels, NCHW or NHWC; use input_type=BIN"
        )
