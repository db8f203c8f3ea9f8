"""WAV files as a model's input."""

from __future__ import annotations

import re
import wave
from collections.abc import Mapping
from math import ceil, gcd
from typing import Any

import numpy as np

from engine.cli.input_files import InputFile
from engine.errors import InputError
from engine.host.interrupts import raised_by_handler
from engine.types import DType, TensorSpec

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

# The highest in use is 768 kHz. Beyond these bounds a header is damaged, and would ask for GiB.
_HIGHEST_RATE, _FURTHEST = 1_000_000, 256


def read_recording(
    file: InputFile, spec: TensorSpec, shape: Shape | None, metadata: Mapping[str, str]
) -> tuple[Array, str]:
    """Return a recording as the input takes it, and what was done in words.

    Floats are -1 to 1, int16 stays as it is. Several channels are mixed to one unless the input has
    an axis of so many. It is resampled to the rate that the model's metadata names. Raises
    InputError.
    """
    samples, bits, rate = _read(file)
    channels = samples.shape[0]
    done = [f"{rate} Hz, {samples.shape[1] / rate if rate else 0:.3g} s, {bits} bit"]
    declared = [dim if isinstance(dim, int) else None for dim in shape or spec.shape or ()]
    rank = len(declared)
    is_float = "float" in spec.dtype
    if not (is_float or spec.dtype is DType.INT16) or rank not in (1, 2, 3):
        raise InputError(
            f"{file}: is a recording, but input {spec.name!r} is {spec}; expected floats or int16 "
            "with 1 to 3 axes; make the array in Python and give it as .npy",
            spec.name,
        )
    if spec.dtype is DType.INT16 and bits != 16:
        raise InputError(
            f"{file}: input {spec.name!r} is int16, and the recording has {bits} bits a sample",
            spec.name,
        )
    # Of [batch, samples], [channels, samples], [samples, channels] and with a batch before.
    inner = declared[-2:]
    has_channels = channels > 1 and channels in inner
    is_last = has_channels and inner[-1] == channels and inner[0] != channels
    is_last = is_last or (rank > 1 and inner[-1] == 1 and inner[0] != 1)
    if channels > 1 and not has_channels:
        samples = np.rint(samples.mean(0, keepdims=True))
        done.append(f"{channels} channels mixed to 1")
    wanted = _rate_of(metadata)
    if wanted is None:
        done.append("not resampled: the model's metadata names no rate")
    elif wanted != rate:
        low, high = sorted((rate, wanted))
        if high > min(_HIGHEST_RATE, low * _FURTHEST):
            raise InputError(
                f"{file}: cannot be resampled from {rate} Hz to {wanted} Hz, which the model's "
                f"metadata names; expected rates up to {_HIGHEST_RATE} Hz, at most {_FURTHEST} "
                "times apart; resample it in Python and give it as .npy",
                spec.name,
            )
        samples = resampled(samples, rate, wanted)
        highest = 2.0 ** (bits - 1)
        samples = np.clip(np.rint(samples), -highest, highest - 1)
        done.append(f"resampled to {wanted} Hz, as the model's metadata says")
    length = declared[-2 if is_last else -1] if rank > 1 else declared[0]
    if length is not None and length != samples.shape[1]:
        done.append(f"{'cut' if length < samples.shape[1] else 'padded with 0'} to {length}")
        padded = np.zeros((samples.shape[0], length))
        padded[:, : samples.shape[1]] = samples[:, :length]
        samples = padded
    if is_float:
        samples = samples / 2.0 ** (bits - 1)
        done.append("values -1..1")
    value = samples.astype(spec.dtype.numpy)
    value = value.T if is_last else value
    value = value[0] if rank == 1 else value[None] if rank == 3 else value
    return np.ascontiguousarray(value), ", ".join(done)


def _rate_of(metadata: Mapping[str, str]) -> int | None:
    """Return the rate of the sound that a model takes; None where its metadata names none, or two.

    There is no standard: sample_rate, sampling_rate, audio.sample_rate and the like.
    """
    named = {
        int(text)
        for key, text in metadata.items()
        if re.sub("[^a-z]", "", key.lower()).endswith(("samplerate", "samplingrate"))
        and re.fullmatch(r"[1-9]\d{2,11}", text.strip(), re.ASCII)
    }
    return named.pop() if len(named) == 1 else None


def resampled(samples: Array, rate: int, wanted: int) -> Array:
    """Return samples[channels, length] at another rate, without what that rate cannot hold.

    Each new sample is a sum of those around it, weighted by a sinc function in a Kaiser window. The
    weights depend on the phase, its place between two old samples. Few phases have their own
    weights each; of many, the weights are interpolated between those of evenly spaced phases.
    """
    common = gcd(rate, wanted)
    step, phases = rate // common, wanted // common
    cutoff = min(1.0, wanted / rate)
    half = ceil(_CROSSINGS / cutoff)
    spaced = phases if phases <= _MOST_PHASES * cutoff else ceil(_SPACED_PHASES * cutoff)
    weights = _weights(cutoff, half, spaced)
    length = ceil(samples.shape[1] * wanted / rate)
    padded = np.pad(np.asarray(samples, np.float64), ((0, 0), (half, half)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half, axis=1)
    result = np.empty((samples.shape[0], length))
    block = max(1, _BLOCK // (2 * half * len(padded)))
    for start in range(0, length, block):
        places = np.arange(start, min(start + block, length), dtype=np.int64) * step
        whole, rest = np.divmod(places, phases)
        row, between = np.divmod(rest * spaced, phases)
        chosen = weights[row]
        if spaced != phases:
            chosen += (weights[row + 1] - chosen) * (between / phases)[:, None]
        # The first sample of a window is `half - 1` before the one that the phase is next to.
        result[:, start : start + block] = np.einsum("cnk,nk->cn", windows[:, whole + 1], chosen)
    return result


def _weights(cutoff: float, half: int, spaced: int) -> Array:
    """Return weights[phase, 2 * half] of phases 0 to 1, both included, `spaced` steps apart."""
    distance = np.arange(1 - half, half + 1) - np.arange(spaced + 1)[:, None] / spaced
    window = np.i0(_BETA * np.sqrt(np.maximum(0, 1 - (distance / half) ** 2)))
    weights = np.sinc(cutoff * distance) * window
    result: Array = weights / weights.sum(1, keepdims=True)
    return result


_CROSSINGS, _BETA = 32, 10.0  # what is folded back is 1e-5 of it, less than 16 bits show
# Per crossing of zero, so that the weights of a low cutoff, which are many, have few phases.
_MOST_PHASES, _SPACED_PHASES = 4096, 512  # interpolated weights are wrong by 2e-6 at most
_BLOCK = 2**18  # values that are weighted at once: 2 MiB, which a cache holds


def _read(file: InputFile) -> tuple[Array, int, int]:
    """Return samples[channels, length] as whole numbers around 0, their bits, and the rate."""
    try:
        with file.open() as opened, wave.open(opened) as recording:
            width, channels = recording.getsampwidth(), recording.getnchannels()
            rate = recording.getframerate()
            data = recording.readframes(recording.getnframes())
    except (wave.Error, EOFError, RuntimeError) as error:
        if raised_by_handler(error):
            raise
        # RuntimeError, without a word: a chunk's length leads out of the file.
        what = str(error) or "it ends early, or a part of it is longer than the file"
        raise InputError(
            f"{file}: not a readable WAV file of whole numbers (PCM): {what}; save it anew"
        ) from error
    if width not in (1, 2, 3, 4, 8):
        raise InputError(
            f"{file}: expected 8, 16, 24, 32 or 64 bits a sample, got {8 * width}; save it with "
            "one of these"
        )
    data = data[: len(data) // width * width]  # of a file that ends early
    if width == 1:  # the only one without a sign
        flat = np.frombuffer(data, np.uint8).astype(np.int64) - 128
    elif width == 3:
        whole = np.frombuffer(data, np.uint8).reshape(-1, 3)
        wide = np.zeros((len(whole), 4), np.uint8)
        wide[:, 1:] = whole
        flat = wide.reshape(-1).view("<i4").astype(np.int64) >> 8
    else:
        flat = np.frombuffer(data, f"<i{width}").astype(np.int64)
    return flat[: len(flat) // channels * channels].reshape(-1, channels).T, 8 * width, rate
