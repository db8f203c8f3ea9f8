"""Collectives of a sliced model: nodes of com.microsoft with attribute `group`.

The whole world is group "". Nodes carry `group_ranks` where the file names the members of a group.
"""

from __future__ import annotations

from typing import Any

from engine.formats.collectives import DOMAIN
from engine_mindir.emit import Emitter
from engine_mindir.primitives import primitive
from engine_mindir.primitives.casts import type_of
from engine_mindir.values import Value

_WORLD = ("hccl_world_group", "nccl_world_group", "mccl_world_group", "")


def _members(group: Any, rank_list: Any) -> dict[str, Any]:
    named: dict[str, Any] = {"group": "" if group in _WORLD else str(group)}
    if rank_list:
        named["group_ranks"] = [int(rank) for rank in rank_list]
    return named


@primitive("AllReduce", "all_reduce")
def all_reduce(
    g: Emitter, x: Value, *, op: str = "sum", group: Any = "", rank_list: Any = None
) -> Value:
    return g.node(
        "AllReduce", x, domain=DOMAIN, shape=x.shape, reduction=op, **_members(group, rank_list)
    )


@primitive("AllGather")
def all_gather(
    g: Emitter, x: Value, *, group: Any = "", rank_size: int = 1, rank_list: Any = None
) -> Value:
    return g.node(
        "AllGather", x, domain=DOMAIN, group_size=int(rank_size), axis=0,
        **_members(group, rank_list),
    )  # fmt: skip


@primitive("ReduceScatter")
def reduce_scatter(
    g: Emitter,
    x: Value,
    *,
    op: str = "sum",
    group: Any = "",
    rank_size: int = 1,
    rank_list: Any = None,
) -> Value:
    return g.node(
        "ReduceScatter", x, domain=DOMAIN, group_size=int(rank_size), reduction=op,
        **_members(group, rank_list),
    )  # fmt: skip


@primitive("AlltoAll", "AllToAll")
def all_to_all(
    g: Emitter,
    x: Value,
    *,
    split_count: int = 1,
    split_dim: int = 0,
    concat_dim: int = 0,
    group: Any = "",
    rank_list: Any = None,
) -> Value:
    return g.node(
        "AllToAll", x, domain=DOMAIN, group_size=int(split_count), split_axis=int(split_dim),
        concat_axis=int(concat_dim), **_members(group, rank_list),
    )  # fmt: skip


@primitive("Broadcast")
def broadcast(
    g: Emitter, x: Any, *, root_rank: int = 0, group: Any = "", rank_list: Any = None
) -> Any:
    many = isinstance(x, tuple)
    results = tuple(
        g.node(
            "Broadcast", tensor, domain=DOMAIN, shape=tensor.shape, root=int(root_rank),
            **_members(group, rank_list),
        )
        for tensor in (x if many else (x,))
    )  # fmt: skip
    return results if many and isinstance(g.result, tuple) else results[0]


@primitive("Send")
def send(
    g: Emitter,
    x: Value,
    *,
    dest_rank: int,
    sr_tag: int = 0,
    group: Any = "",
    group_rank_ids: Any = None,
) -> Value:
    return g.node(
        "Send", x, domain=DOMAIN, shape=x.shape, rank=int(dest_rank), tag=int(sr_tag),
        **_members(group, group_rank_ids),
    )  # fmt: skip


@primitive("Receive")
def receive(
    g: Emitter,
    x: Any = None,
    *,
    src_rank: int,
    shape: Any,
    dtype: Any,
    sr_tag: int = 0,
    group: Any = "",
    group_rank_ids: Any = None,
) -> Value:
    return g.node(
        "Receive", domain=DOMAIN, dtype=type_of(g, dtype), shape=tuple(shape),
        sizes=[int(size) for size in shape], to=type_of(g, dtype).onnx, rank=int(src_rank),
        tag=int(sr_tag), **_members(group, group_rank_ids),
    )  # fmt: skip


@primitive("Barrier")
def barrier(g: Emitter, *rest: Any, group: Any = "") -> Value:
    return g.node("Barrier", g.constant(0), domain=DOMAIN, **_members(group, None))
