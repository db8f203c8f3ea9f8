"""Weights of a training job into a model: MindSpore's load_distributed_checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from engine.config.checks import require, require_watchers
from engine.errors import InputError, ModelError
from engine.sharding.checkpoint import FORMATS, SAFETENSORS, open_checkpoint
from engine.sharding.copies import require_copies
from engine.sharding.layout import Layout
from engine.sharding.network import Network, network_of
from engine.sharding.parameter import Parameter
from engine.sharding.reshard import Part, Sources, needed_ranks, part_for, value_of
from engine.sharding.stored import Array, Checkpoint
from engine.sharding.strategy import Arrangement
from engine.sharding.transform import save_ranks
from engine.types import DType, Progress, TensorSpec
from engine.typing import CheckpointFormat, DecMode

PathLike: TypeAlias = "str | os.PathLike[str]"
PredictStrategy: TypeAlias = "Mapping[str, Layout | Sequence[Any]] | PathLike | None"

_log = logging.getLogger(__name__)

_FLOATS = {DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16}
_INTEGERS = {DType.INT8, DType.INT16, DType.INT32, DType.INT64}


def load_distributed_checkpoint(
    network: object,
    checkpoint_filenames: Sequence[PathLike] | None = None,
    predict_strategy: PredictStrategy = None,
    train_strategy_filename: PathLike | None = None,
    strict_load: bool = False,
    dec_key: bytes | None = None,
    dec_mode: DecMode = "AES-GCM",
    format: CheckpointFormat = "ckpt",
    unified_safetensors_dir: PathLike | None = None,
    dst_safetensors_dir: PathLike | None = None,
    rank_id: int | None = None,
    output_format: CheckpointFormat = "safetensors",
    name_map: Mapping[str, str] | None = None,
    max_process_num: int = 64,
    return_param_dict: bool = False,
    *,
    output_file: PathLike | None = None,
    progress: Progress | None = None,
) -> bool | dict[str, Parameter]:
    """Put the weights that a job of ranks has trained into a model, split as it is to predict.

    network: the path of an ONNX model, with `output_file` for the result; an onnx.ModelProto; an
        engine.Model, whose weights were declared variable. None writes the weights of each rank,
        or of rank_id, to <dst_safetensors_dir>/rank_0/net.safetensors and so on.
    checkpoint_filenames: of all ranks, in their order; only those with something for this rank
        are opened. With train_strategy_filename None each of them holds the weights whole (data
        parallel, integrated), and one is enough; of several each rank compares its own with rank
        0's, which are taken, and rank 0 all of them.
        Or unified_safetensors_dir, a folder of .safetensors that hold the whole weights together.
    predict_strategy: layouts by parameter, from infer_predict_layout or build_searched_strategy,
        or a strategy file; None for one device, which holds everything.
    strict_load: names and types must be equal. Else a prefix that only the checkpoint's names have
        is passed over, and float types, and integer types, are converted.
    dec_key, dec_mode: of encrypted .ckpt files. The weights are then not written to a file.
    rank_id: of the predicting job; None is the rank of this process.
    name_map: the model's name of a parameter by its name in the checkpoint.
    format, output_format: "ckpt" or "safetensors"; files are read by their names.
    max_process_num: ranks that are written at once. progress: after each parameter.

    Returns True, or the Parameters by the model's names where return_param_dict is set.
    Raises TypeError; InputError, ModelError naming the file and the parameter: then nothing was
    replaced in a file or an engine.Model.
    """
    require_watchers(progress, None)
    for name, value in (("format", format), ("output_format", output_format)):
        if value not in FORMATS:
            raise InputError(f"{name} must be one of {', '.join(FORMATS)}, but got {value!r}")
    if dec_key is not None:
        require("dec_key", dec_key, bytes)
        if output_file is not None or network is None:
            raise InputError(
                "the checkpoints are encrypted, and their weights are not written in clear; give "
                "an engine.Model or an onnx.ModelProto as network"
            )
    target = _predicting(predict_strategy)
    source, files, open_file = _trained(
        checkpoint_filenames, unified_safetensors_dir, train_strategy_filename, format
    )
    if open_file is None:
        open_file = partial(open_checkpoint, dec_key=dec_key or None, dec_mode=dec_mode)
    this_rank = _this_rank(rank_id)
    rank = _rank_of(this_rank, target)
    copies = files
    if source.is_single:
        if this_rank:  # rank 0 looks at all of them
            copies = {each: files[each] for each in (0, this_rank) if each in files}
        files = {0: files[0]}
    sources = Sources(files, source, open_file)
    require_same = partial(_require_same, sources, copies, open_file, progress)
    if network is None:
        if dst_safetensors_dir is None:
            raise InputError("network is None; say where to write: dst_safetensors_dir=...")
        require_same(None)
        save_ranks(
            range(target.rank_count) if rank_id is None else [rank],
            sources,
            target,
            Path(dst_safetensors_dir),
            lambda _: f"net.{output_format}",
            output_format,
            max_process_num,
            progress,
            name_map,
        )
        return True
    into = network_of(network, output_file)
    parts = _matched(into, rank, sources, target, name_map or {}, strict_load)
    for name, part in parts.items():
        _check_fit(into, into.parameters[name], part, sources, strict_load)
    require_same([part.spec.name for part in parts.values()])
    done = 0

    def read(name: str) -> Array:
        nonlocal done
        done += 1
        if progress is not None:
            progress("loading", done, len(parts))
        return _fitted(into.parameters[name], value_of(parts[name], sources))

    if return_param_dict:
        values = {name: read(name) for name in parts}
        into.replace({name: partial(values.__getitem__, name) for name in parts})
        return {name: Parameter(value, name) for name, value in values.items()}
    into.replace({name: partial(read, name) for name in parts})
    return True


# ------------------------------------------------------------------------------------- arguments


def _this_rank(rank_id: int | None) -> int:
    if rank_id is None:
        from engine.distributed.job import this_job

        return this_job().rank
    return require("rank_id", rank_id, int)


def _rank_of(rank: int, target: Arrangement) -> int:
    if target.rank_count == 1:
        return 0 if rank >= 0 else rank
    if not 0 <= rank < target.rank_count:
        raise InputError(
            f"this is rank {rank}, but {target.source} is for {target.rank_count} devices; pass "
            "rank_id, or the strategy of the job that predicts"
        )
    return rank


def _predicting(strategy: PredictStrategy) -> Arrangement:
    if strategy is None:
        return Arrangement(None)
    if isinstance(strategy, str | os.PathLike):
        return Arrangement.of_file(Path(strategy))
    if not isinstance(strategy, Mapping):
        raise TypeError(f"predict_strategy must be dict, but got {type(strategy)}.")
    return Arrangement(
        {name: _layout(name, value) for name, value in strategy.items()}, "predict_strategy"
    )


def _layout(name: str, value: object) -> Layout:
    """Return a layout that MindSpore gives as a list, in either of its two forms."""
    if isinstance(value, Layout):
        return value
    if not isinstance(value, list | tuple) or len(value) < 2:
        raise InputError(
            f"predict_strategy[{name!r}]: expected a Layout, or MindSpore's list [dev_matrix, "
            f"tensor_map, ...], got {str(value)[:60]}",
            name,
        )
    fields = [tuple(item) if isinstance(item, list | tuple) else item for item in value[:7]]
    if len(fields) > 5 and isinstance(fields[5], str):
        # As parameter_layout_dict has it: slice shape, field, even split, group, whole shape.
        if fields[5]:
            raise InputError(
                f"predict_strategy[{name!r}]: the optimizer is sharded over a group "
                f"({fields[5]!r}), which has a meaning in its job only; give the strategy file",
                name,
            )
        fields = [*fields[:2], (), fields[3] or 0]
    wanted = Layout()
    for number, field in enumerate(fields):
        is_tuple = isinstance(wanted[number], tuple)
        items = field if is_tuple and isinstance(field, tuple) else (field,)
        if is_tuple is not isinstance(field, tuple) or not all(isinstance(i, int) for i in items):
            raise InputError(
                f"predict_strategy[{name!r}]: entry {number} is {str(field)[:60]!r}; expected "
                f"{'whole numbers' if is_tuple else 'a whole number'} ({Layout._fields[number]})",
                name,
            )
    given: dict[str, Any] = dict(zip(Layout._fields, fields, strict=False))
    return wanted._replace(**given)


def _trained(
    filenames: Sequence[PathLike] | None,
    unified: PathLike | None,
    strategy: PathLike | None,
    format: str,
) -> tuple[Arrangement, dict[int, Path], Callable[[Path], Checkpoint] | None]:
    if unified is not None:
        if filenames is not None or strategy is not None:
            raise InputError(
                "unified_safetensors_dir holds the weights whole; leave checkpoint_filenames and "
                "train_strategy_filename out"
            )
        return Arrangement(None), {0: Path(unified)}, _open_folder
    if isinstance(filenames, str | os.PathLike) or not isinstance(filenames, Sequence):
        raise TypeError(
            f"checkpoint_filenames must be list, in the order of ranks, but got {type(filenames)}."
        )
    files = {rank: Path(file) for rank, file in enumerate(filenames)}
    if not files:
        raise InputError("checkpoint_filenames is empty; expected the checkpoint of each rank")
    source = Arrangement.of_file(None if strategy is None else Path(strategy))
    if not source.is_single and len(files) != source.rank_count:
        raise InputError(
            f"checkpoint_filenames has {len(files)} files, but {source.source} is for "
            f"{source.rank_count} devices ({source.stage_count} stages of {source.stage_devices}); "
            "give the checkpoint of each rank, in order"
        )
    return source, files, None


def _require_same(
    sources: Sources,
    copies: Mapping[int, Path],
    open_file: Callable[[Path], Checkpoint],
    progress: Progress | None,
    names: Sequence[str] | None,
) -> None:
    """Compare the files of ranks without a strategy, where there are several, with rank 0's."""
    if sources.arrangement.is_single and len(copies) > 1:
        require_copies(
            sources[0],
            copies,
            open_file,
            "without train_strategy_filename each rank must hold the same, whole weights: give "
            "train_strategy_filename, the strategy of the job that wrote them, or, where rank 0's "
            "weights are meant, its file alone",
            progress,
            names,
        )


def _open_folder(folder: Path) -> Checkpoint:
    """Open all .safetensors of a folder as one checkpoint."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder; expected one of .safetensors", str(folder))
    files = sorted(folder.glob(f"*.{SAFETENSORS}"))
    if not files:
        raise ModelError(f"{folder}: holds no .safetensors file", str(folder))
    tensors: dict[str, Any] = {}
    for file in files:
        for name, stored in open_checkpoint(file).tensors.items():
            if name in tensors:
                raise ModelError(
                    f"{file}: parameter {name!r} is in another file of the folder too; expected "
                    "files that hold the weights together",
                    str(file),
                )
            tensors[name] = stored
    return Checkpoint(folder, tensors)


# ------------------------------------------------------------------------------------- matching


def _matched(
    network: Network,
    rank: int,
    sources: Sources,
    target: Arrangement,
    name_map: Mapping[str, str],
    strict: bool,
) -> dict[str, Part]:
    """Return the part of the checkpoints for each of the network's parameters that they have."""
    source, stage = sources.arrangement, target.place(rank)[0]
    there: dict[str, None] = {}
    for other in needed_ranks(rank, source, target):
        there.update(dict.fromkeys(sources[other].tensors))
    if not source.is_single:
        there.update(dict.fromkeys(name for name in _known(source) if name not in there))
    for stored, own in name_map.items():
        if own not in network.parameters:
            raise InputError(f"name_map: {network.name} has no parameter {own!r}", own)
        if stored not in there:
            raise InputError(f"name_map: the checkpoints have no parameter {stored!r}", stored)
    stored_as = {own: stored for stored, own in name_map.items()}
    for name in network.parameters:
        if name in there and name not in name_map:
            stored_as.setdefault(name, name)
    if not strict:
        _match_prefixed(network.parameters, there, stored_as)
    parts: dict[str, Part] = {}
    for name, stored in stored_as.items():
        if stage in target.stages(stored) and (part := part_for(stored, rank, sources, target)):
            parts[name] = part
    if not parts:
        raise InputError(
            f"none of the {len(there)} parameters of the checkpoints (such as "
            f"{next(iter(there), '')!r}) is one of {network.name} (such as "
            f"{next(iter(network.parameters), '')!r}); map their names: name_map={{...}}"
        )
    left = [
        name
        for name, spec in network.parameters.items()
        if name not in parts and spec.dtype in _FLOATS and spec.shape
    ]
    if left:
        _log.warning(
            "%d parameters of %s are not in the checkpoints and stay as they are: %s%s",
            len(left), network.name, ", ".join(left[:8]), ", ..." if len(left) > 8 else "",
        )  # fmt: skip
    return parts


def _known(source: Arrangement) -> Iterable[str]:
    return dict.fromkeys(
        name for stage in range(source.stage_count) for name in source.names(stage)
    )


def _match_prefixed(
    parameters: Mapping[str, TensorSpec], there: Mapping[str, None], stored_as: dict[str, str]
) -> None:
    """Match names that lack a prefix which the checkpoint's have, such as "network."."""
    tried: set[str] = set()
    while missing := [name for name in parameters if name not in stored_as]:
        taken = set(stored_as.values())
        prefix = next(
            (
                stored[: -len(name)]
                for name in missing
                for stored in there
                if stored.endswith(f".{name}")
                and stored not in taken
                and stored[: -len(name)] not in tried
            ),
            None,
        )
        if prefix is None:
            return
        tried.add(prefix)
        found = {name: prefix + name for name in missing if prefix + name in there}
        stored_as.update(found)
        _log.info("%d parameters are in the checkpoints with the prefix %r", len(found), prefix)


def _check_fit(
    network: Network, spec: TensorSpec, part: Part, sources: Sources, strict: bool
) -> None:
    """Raise InputError where a parameter cannot become the network's."""
    got = part.spec
    same_type = got.dtype is spec.dtype or (
        not strict and any({got.dtype, spec.dtype} <= kinds for kinds in (_FLOATS, _INTEGERS))
    )
    assert spec.shape is not None
    if same_type and _without_ones(got.shape) == _without_ones(spec.shape):
        return
    file = sources.files[next(iter(part.chosen.values()), min(sources.files))]
    advice = (
        "with strict_load types must be equal" if got.shape == spec.shape and strict
        else "is the model the slice of this rank, and predict_strategy its layout?"
    )  # fmt: skip
    raise InputError(
        f"parameter {spec.name!r}: {network.name} expects {spec.dtype}{list(spec.shape)}, got "
        f"{got.dtype or part.kind}{list(got.shape)} from {file}; {advice}",
        spec.name,
    )


def _without_ones(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Return a shape without 1s at its end: MindSpore keeps some tensors with four dimensions."""
    end = len(shape)
    while end and shape[end - 1] == 1:
        end -= 1
    return tuple(shape[:end])


def _fitted(spec: TensorSpec, array: Array) -> Array:
    """Return an array as the network's parameter, whose type and shape it can have."""
    shape = tuple(map(int, spec.shape or ()))  # type: ignore[arg-type]  # sizes, of a constant
    return array.reshape(shape).astype(spec.dtype.numpy, copy=False)
