"""TensorRT's timing cache: how fast which kernel is here, shared between compiles of all models."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine_gpu_trt.cuda import Gpu
from engine_gpu_trt.form import made_with


def attach(folder: Path, gpu: Gpu, trt: Any, config: Any) -> Any:
    """Give a build the timing cache of a folder, inside `with gpu`.

    Returns it; it must live as long as the configuration does. None where TensorRT takes none.
    """
    with suppress(OSError):
        cache = config.create_timing_cache(_file(folder, gpu, trt).read_bytes())
        if cache is not None and config.set_timing_cache(cache, False):
            return cache
        del cache
    cache = config.create_timing_cache(b"")  # there is none yet, or it is damaged
    if cache is not None:
        config.set_timing_cache(cache, False)
    return cache


def save(folder: Path, gpu: Gpu, trt: Any, config: Any, cache: Any) -> None:
    """Write back what a build has timed, inside `with gpu`.

    Times that others wrote meanwhile are combined with it. The file is replaced as a whole, so
    that nobody reads half of one; two that replace it at once lose one's times, which costs time
    and nothing else. Nor does a disk that is full.
    """
    path = _file(folder, gpu, trt)
    with suppress(OSError):
        other = config.create_timing_cache(path.read_bytes())
        if other is not None:
            cache.combine(other, False)
        del other
    with suppress(OSError):
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=path.name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(memoryview(cache.serialize()))
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _file(folder: Path, gpu: Gpu, trt: Any) -> Path:
    """Return the cache file for this TensorRT and kind of device."""
    made = repr(sorted(made_with(gpu, trt).items())).encode()
    return folder / f"timing-{hashlib.sha256(made).hexdigest()[:16]}.cache"
