"""Checkpoints of one job of ranks made into those of another: MindSpore's functions for it."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from engine.config.checks import require, require_count, require_watchers
from engine.errors import InputError, ModelError
from engine.sharding.checkpoint import (
    FORMATS,
    SUFFIXES,
    EncryptedCheckpoint,
    format_of,
    open_checkpoint,
    write_checkpoint,
)
from engine.sharding.copies import require_copies
from engine.sharding.files import NotAFolder, aside, make_folder
from engine.sharding.reshard import Part, Sources, needed_ranks, parts_for, value_of
from engine.sharding.stored import Array, Checkpoint, ToWrite
from engine.sharding.strategy import Arrangement
from engine.types import Progress
from engine.typing import CheckpointFormat

PathLike: TypeAlias = "str | os.PathLike[str]"

_log = logging.getLogger(__name__)
_RANK_FOLDER = re.compile(r"rank_(\d{1,9})")


def rank_list_for_transform(
    rank_id: int,
    src_strategy_file: PathLike | None = None,
    dst_strategy_file: PathLike | None = None,
) -> list[int]:
    """Return the source ranks whose checkpoints one target rank needs, in order.

    src_strategy_file, dst_strategy_file: None for weights that are not split; then the source is
    rank 0. No checkpoint is looked at.
    Raises TypeError; ModelError for a bad strategy, or strategies that do not fit each other.
    """
    require("rank_id", rank_id, int)
    source, target = _arrangements(src_strategy_file, dst_strategy_file)
    return needed_ranks(_checked_rank(rank_id, target), source, target)


def transform_checkpoint_by_rank(
    rank_id: int,
    checkpoint_files_map: Mapping[int, PathLike],
    save_checkpoint_file_name: PathLike,
    src_strategy_file: PathLike | None = None,
    dst_strategy_file: PathLike | None = None,
    *,
    progress: Progress | None = None,
) -> None:
    """Write the checkpoint of one target rank.

    checkpoint_files_map: the source's files by rank, at least those that rank_list_for_transform
    gives. save_checkpoint_file_name: ends in .ckpt or .safetensors, which says the form.
    progress(phase, done, total) is called after each parameter.
    Raises TypeError; ModelError naming the file and the parameter.
    """
    require("rank_id", rank_id, int)
    if not isinstance(checkpoint_files_map, Mapping):
        raise TypeError(f"checkpoint_files_map must be dict, but got {type(checkpoint_files_map)}.")
    require_watchers(progress, None)
    path = Path(save_checkpoint_file_name)
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"save_checkpoint_file_name {str(path)!r}: expected a name that ends in .ckpt or "
            ".safetensors"
        )
    source, target = _arrangements(src_strategy_file, dst_strategy_file)
    rank = _checked_rank(rank_id, target)
    files = {
        require("a rank in checkpoint_files_map", of, int): Path(file)
        for of, file in checkpoint_files_map.items()
    }
    _check_ranks(files, source, "checkpoint_files_map")
    sources = Sources(files, source, _open_plain)
    parts = list(parts_for(rank, sources, target, sorted(files)))
    _check_parts(parts, rank, sources, target)
    with aside(path.parent, path) as folder:
        _write(folder / path.name, parts, sources, format_of(path), rank, progress, {})
        (folder / path.name).replace(path)


def transform_checkpoints(
    src_checkpoints_dir: PathLike,
    dst_checkpoints_dir: PathLike,
    ckpt_prefix: str,
    src_strategy_file: PathLike | None = None,
    dst_strategy_file: PathLike | None = None,
    process_num: int = 1,
    output_format: CheckpointFormat = "ckpt",
    *,
    progress: Progress | None = None,
) -> None:
    """Write the checkpoints of all target ranks: <dst>/rank_0/<prefix>0.ckpt and so on.

    src_checkpoints_dir: has a folder rank_0, rank_1, ... for each rank; the file in it whose name
        sorts last counts. With src_strategy_file None rank_0's holds the weights whole, and those
        of other ranks (data parallel) must hold the same: they are compared with it.
    ckpt_prefix: what the names of the files begin with; the rank follows.
    src_strategy_file, dst_strategy_file: None for weights that are not split; of a pipeline, what
        merge_pipeline_strategys wrote.
    process_num: target ranks that are written at once. output_format: "ckpt" or "safetensors".
    Files appear when all are complete. progress(phase, done, total) is called after each parameter
    that was compared or written.
    Raises TypeError; NotADirectoryError; ModelError naming file, rank and parameter.
    """
    require("ckpt_prefix", ckpt_prefix, str)
    require_watchers(progress, None)
    workers = max(1, require_count("process_num", process_num))
    if output_format not in FORMATS:
        raise InputError(
            f"output_format must be one of {', '.join(FORMATS)}, but got {output_format!r}"
        )
    if Path(ckpt_prefix).name != ckpt_prefix:
        raise InputError(f"ckpt_prefix {ckpt_prefix!r}: expected the beginning of a file's name")
    files = checkpoint_files(Path(src_checkpoints_dir))
    source, target = _arrangements(src_strategy_file, dst_strategy_file)
    if source.is_single:
        files = _one_of_copies(files, Path(src_checkpoints_dir), progress)
    _check_ranks(files, source, str(src_checkpoints_dir))
    if os.path.realpath(src_checkpoints_dir) == os.path.realpath(dst_checkpoints_dir):
        _log.warning(
            "%s: the results are written beside the checkpoints that they are made of, and the "
            "next call may take them for those; give another folder as dst_checkpoints_dir",
            dst_checkpoints_dir,
        )
    sources = Sources(files, source, _open_plain)
    save_ranks(
        range(target.rank_count),
        sources,
        target,
        Path(dst_checkpoints_dir),
        lambda rank: f"{ckpt_prefix}{rank}.{output_format}",
        output_format,
        workers,
        progress,
    )


def save_ranks(
    ranks: Iterable[int],
    sources: Sources,
    target: Arrangement,
    destination: Path,
    file_name: Callable[[int], str],
    format: str,
    workers: int,
    progress: Progress | None,
    name_map: Mapping[str, str] | None = None,
) -> None:
    """Write the checkpoints of target ranks; files appear when all are complete.

    file_name: gives that of a rank, in <destination>/rank_N. workers: files written at once.
    name_map: names to write instead. Raises ModelError.
    """
    plans: dict[int, list[Part]] = {}
    for rank in ranks:
        needed = needed_ranks(rank, sources.arrangement, target)
        for other in needed:
            if other not in sources.files:
                folder = next(iter(sources.files.values())).parents[1]
                raise ModelError(
                    f"{folder}: the checkpoint of rank {other} is missing, which rank {rank} "
                    f"needs; expected a .ckpt or .safetensors file in {folder / f'rank_{other}'}",
                    str(folder),
                )
        plans[rank] = list(parts_for(rank, sources, target, needed))
        _check_parts(plans[rank], rank, sources, target)
    lock = threading.Lock()

    def watched(phase: str, done: int, total: int | None) -> None:
        if progress is not None:
            with lock:
                progress(phase, done, total)

    with aside(destination, destination) as folder:

        def one(rank: int) -> None:
            path = folder / str(rank)
            _write(path, plans[rank], sources, format, rank, watched, name_map or {})

        _each(one, plans, min(workers, len(plans), os.cpu_count() or 1))
        for rank in plans:
            place = destination / f"rank_{rank}"
            make_folder(place)
            (folder / str(rank)).replace(place / file_name(rank))


def _each(do: Callable[[int], None], ranks: Iterable[int], workers: int) -> None:
    """Do something for each rank, several at once; what fails or interrupts ends the others."""
    if workers <= 1:
        for rank in ranks:
            do(rank)
        return
    with ThreadPoolExecutor(workers) as pool:
        try:
            for done in [pool.submit(do, rank) for rank in ranks]:
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def checkpoint_files(folder: Path) -> dict[int, Path]:
    """Return the checkpoint of each rank in a folder of rank_0, rank_1, ...: the last by name.

    Raises NotADirectoryError, and ModelError where forms are mixed or there is none.
    """
    if not folder.is_dir():
        raise NotAFolder(
            f"{folder}: no such folder; expected one with a folder rank_0, rank_1, ... for each "
            "rank",
            str(folder),
        )
    found: dict[int, Path] = {}
    for path in folder.iterdir():
        match = _RANK_FOLDER.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        files = sorted(
            file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file()
        )
        if files:
            found[int(match[1])] = files[-1]
    if not found:
        raise ModelError(
            f"{folder}: holds no checkpoints; expected .ckpt or .safetensors files in folders "
            "rank_0, rank_1, ...",
            str(folder),
        )
    kinds = {file.suffix: file for file in found.values()}
    if len(kinds) > 1:
        one, other = kinds.values()
        raise ModelError(
            f"{folder}: holds both forms, as {one} and {other}; expected one: remove the others",
            str(folder),
        )
    return dict(sorted(found.items()))


def _open_plain(path: Path) -> Checkpoint:
    """Open a checkpoint that is not encrypted: what is made of it is not either."""
    try:
        return open_checkpoint(path)
    except EncryptedCheckpoint as error:
        raise EncryptedCheckpoint(
            f"{path}: is encrypted, and what would be written is not; give its key to "
            "load_distributed_checkpoint(..., dec_key=...), which keeps the weights in memory",
            str(path),
        ) from error


def _arrangements(
    source: PathLike | None, target: PathLike | None
) -> tuple[Arrangement, Arrangement]:
    for name, value in (("src_strategy_file", source), ("dst_strategy_file", target)):
        if value is not None and not isinstance(value, str | os.PathLike):
            raise TypeError(f"{name} must be str, but got {type(value)}.")
    return (
        Arrangement.of_file(None if source is None else Path(source)),
        Arrangement.of_file(None if target is None else Path(target)),
    )


def _checked_rank(rank: int, target: Arrangement) -> int:
    if not 0 <= rank < target.rank_count:
        raise InputError(
            f"rank_id {rank}: expected 0 to {target.rank_count - 1}, for "
            + (f"{target.source} is for {target.rank_count} devices" if not target.is_single
               else "without dst_strategy_file there is one device")
        )  # fmt: skip
    return rank


def _check_ranks(files: Mapping[int, Path], source: Arrangement, where: str) -> None:
    """Raise ModelError where there are files of more ranks than the strategy is for."""
    most = max(files, default=0)
    if most >= source.rank_count:
        is_for = (
            "without src_strategy_file the weights are expected whole in rank 0's"
            if source.is_single
            else f"{source.source} is for {source.rank_count} devices "
            f"({source.stage_count} stages of {source.stage_devices})"
        )
        raise ModelError(
            f"{where}: has a checkpoint of rank {most} ({files[most]}), but {is_for}; give the "
            "strategy of the job that wrote them",
            where,
        )


def _one_of_copies(
    files: Mapping[int, Path], folder: Path, progress: Progress | None
) -> dict[int, Path]:
    """Return rank 0's file alone, where those of the other ranks hold the same weights.

    Raises ModelError where they do not: they are slices, and nobody says how to join them.
    """
    if 0 not in files:
        raise ModelError(
            f"{folder}: has checkpoints of ranks {sorted(files)} and none of rank 0, which is to "
            "hold the whole weights without src_strategy_file; give the strategy of the job that "
            "wrote them, or put whole weights into rank_0",
            str(folder),
        )
    require_copies(
        _open_plain(files[0]),
        files,
        _open_plain,
        "without src_strategy_file each rank must hold the same, whole weights: give "
        "src_strategy_file, the strategy of the job that wrote them, or, where rank 0's weights "
        "are meant, a folder that holds rank_0 alone",
        progress,
    )
    return {0: files[0]}


def _check_parts(parts: list[Part], rank: int, sources: Sources, target: Arrangement) -> None:
    """Raise ModelError where nothing is left for a rank; say what the target will lack."""
    if not parts:
        raise ModelError(
            f"rank {rank}: none of the parameters in the checkpoints is in {target.source}; are "
            f"both strategies, {sources.arrangement.source} and {target.source}, of one model?"
        )
    have = {part.spec.name for part in parts}
    stage = target.place(rank)[0]
    lacks = [  # a whole one may be a constant of the model, which no training saves
        name
        for name in target.names(stage)
        if name not in have and not target.stages(name)[stage].is_whole
    ]
    if lacks:
        _log.warning(
            "rank %d: %d split parameters of %s are in no checkpoint, such as %r",
            rank, len(lacks), target.source, lacks[0],
        )  # fmt: skip


def _write(
    path: Path,
    parts: list[Part],
    sources: Sources,
    format: str,
    rank: int,
    progress: Progress | None,
    names: Mapping[str, str],
) -> None:
    by_name: dict[str, Part] = {}
    specs: list[ToWrite] = []
    for part in parts:
        name = names.get(part.spec.name, part.spec.name)
        by_name[name] = part
        specs.append(replace(part.spec, name=name))
    done = 0

    def value(spec: ToWrite) -> Array:
        nonlocal done
        done += 1
        if progress is not None:
            progress(f"rank {rank}", done, len(parts))
        return value_of(by_name[spec.name], sources)

    write_checkpoint(path, specs, value, format)


convert_checkpoints = transform_checkpoints
"""MindSpore's newer name of `transform_checkpoints`."""
convert_checkpoint_by_rank = transform_checkpoint_by_rank
"""MindSpore's newer name of `transform_checkpoint_by_rank`."""
rank_list_for_convert = rank_list_for_transform
"""MindSpore's newer name of `rank_list_for_transform`."""
