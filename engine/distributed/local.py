"""The communicator of ranks on one machine: host memory, exchanged through memory that they share.

A collective goes in steps. In each a rank puts its part into a slot of its own segment, says so by
a counter, waits until all others have said the same, and reads theirs. There are two slots, used in
turn: whoever has come to step n+1 has read all of step n, so nobody waits to write.

    comm = LocalCommunicator(options)     # in every rank; blocks until all have joined
    comm.allreduce(send, receive, ReduceOp.SUM, deadline_s)
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.distributed.group import ORDERED, Array, Group, bytes_of, described
from engine.distributed.reduction import Combine, reduction
from engine.distributed.shared_segment import (
    ABORTED,
    PEER_SLOT_BYTES,
    ROUND,
    SLOT_BYTES,
    STATE,
    encoded,
    fence,
    sent_signature_word,
    sent_word,
    signature_word,
    taken_word,
)
from engine.errors import CommunicatorError
from engine.types import CommunicatorOptions, DType, ReduceOp

_DIRECT_BYTES = 32 * 1024
"""Up to this size more than two ranks each reduce everything: one step instead of two."""
_MOST_PREPARED = 256
_SIGNATURE_WORDS = signature_word(0), signature_word(1)


@dataclass(slots=True)
class _Exchange:
    """A prepared collective on tensors of one dtype and shape that fit a slot.

    own: this rank's two slots. parts: of each slot, all ranks' in their order. is_direct: each rank
    reduces all of it, in one step.
    """

    signature: int
    text: str
    encoded: bytes
    own: tuple[Array, Array]
    parts: tuple[list[Array], list[Array]]
    combine: Combine | None
    is_direct: bool


class LocalCommunicator(Group):
    """A joined group; engine.types.Communicator says who may call what.

    Buffers are C-contiguous arrays. Every failure but that of a check of arguments ends the group.
    """

    def __init__(self, options: CommunicatorOptions) -> None:
        super().__init__(options)
        self._step = 0
        self._sent = [0] * self.world_size
        self._taken = [0] * self.world_size
        self._prepared: dict[Any, _Exchange] = {}
        segments = {peer.rank: peer.segment for peer in self.peers} | {self.rank: self.own}
        self._segments = [segments[rank] for rank in range(self.world_size)]

    # ------------------------------------------------------------------------------- collectives

    def allreduce(
        self, send: Array, receive: Array, op: ReduceOp, deadline_s: float | None
    ) -> None:
        """See engine_allreduce."""
        key = (op, send.dtype, send.shape)
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepare(key, f"all-reduce ({op.value})", send, op)
        combine = prepared.combine
        assert combine is not None
        if not prepared.is_direct:
            self._allreduce_large(send, receive, prepared, combine, deadline_s)
            return
        parity = self._parity
        prepared.own[parity][...] = send
        self._round(prepared, parity, deadline_s)
        combine(*prepared.parts[parity], out=receive)

    def allgather(self, send: Array, receive: Array, deadline_s: float | None) -> None:
        """See engine_allgather."""
        key = (None, send.dtype, send.shape)
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepare(key, "all-gather", send, None)
        joined = receive.reshape(self.world_size, send.size)
        if send.nbytes <= SLOT_BYTES:
            parity = self._parity
            prepared.own[parity][...] = send
            self._round(prepared, parity, deadline_s)
            for target, part in zip(joined, prepared.parts[parity], strict=True):
                target[...] = part.reshape(-1)
            return
        flat = send.reshape(-1)
        for begin, own, parts in self._chunks(flat):
            parity = self._parity
            own[parity][...] = flat[begin : begin + own[0].size]
            self._round(prepared, parity, deadline_s)
            for target, part in zip(joined, parts[parity], strict=True):
                target[begin : begin + part.size] = part

    def meet(self, what: str, deadline_s: float | None) -> None:
        """Wait until all ranks have come to the same thing; nothing is exchanged.

        what: names it, with all in which ranks may differ.
        """
        prepared = self._prepared.get(what)
        if prepared is None:
            signature = zlib.crc32(what.encode())
            nothing = np.empty(0, np.uint8)
            slots = nothing, nothing
            prepared = _Exchange(signature, what, encoded(what), slots, ([], []), None, True)
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            self._prepared[what] = prepared
        self._round(prepared, self._parity, deadline_s)

    def send(self, buffer: Array, peer: int, deadline_s: float | None) -> None:
        """See engine_send. Returns when the receiver has taken all but the last two slots."""
        other = self.peer(peer)
        self.refuse_ended()
        data = bytes_of(buffer)
        text = f"send of {described(buffer)}"
        signature = zlib.crc32(text[len("send") :].encode())
        own = self.own
        for begin in _steps(data.size, PEER_SLOT_BYTES):
            step = self._sent[peer] + 1
            # The slot was last used two steps ago.
            self.wait(other, taken_word(self.rank), step - 2, deadline_s, text)
            chunk = data[begin : begin + PEER_SLOT_BYTES]
            own.peer_slot(peer, step % 2)[: chunk.size] = chunk
            own.say(sent_signature_word(peer, step % 2), encoded(text), signature)
            self._sent[peer] = step
            self.tell(sent_word(peer), step, [other])

    def receive(self, buffer: Array, peer: int, deadline_s: float | None) -> None:
        """See engine_receive."""
        other = self.peer(peer)
        self.refuse_ended()
        data = bytes_of(buffer)
        text = f"receive of {described(buffer)}"
        signature = zlib.crc32(text[len("receive") :].encode())
        for begin in _steps(data.size, PEER_SLOT_BYTES):
            step = self._taken[peer] + 1
            self.wait(other, sent_word(self.rank), step, deadline_s, text)
            word = sent_signature_word(self.rank, step % 2)
            if other.words[word] != signature:
                raise self.mismatch(other.rank, text, other.segment.said(word))
            chunk = data[begin : begin + PEER_SLOT_BYTES]
            chunk[...] = other.segment.peer_slot(self.rank, step % 2)[: chunk.size]
            self._taken[peer] = step
            self.tell(taken_word(peer), step, [other])

    def _allreduce_large(
        self,
        send: Array,
        receive: Array,
        prepared: _Exchange,
        combine: Combine,
        deadline_s: float | None,
    ) -> None:
        """Reduce in pieces that fit a slot.

        Two ranks both reduce all of a piece. Of more, each reduces its part of the piece, and a
        second step brings the parts to all.
        """
        flat, result = send.reshape(-1), receive.reshape(-1)
        for begin, own, parts in self._chunks(flat):
            size = own[0].size
            target = result[begin : begin + size]
            parity = self._parity
            own[parity][...] = flat[begin : begin + size]
            self._round(prepared, parity, deadline_s)
            if self.world_size <= 2:
                combine(*parts[parity], out=target)
                continue
            edges = [size * rank // self.world_size for rank in range(self.world_size + 1)]
            mine = slice(edges[self.rank], edges[self.rank + 1])
            combine(*(part[mine] for part in parts[parity]), out=own[1 - parity][mine])
            parity = 1 - parity
            self._round(prepared, parity, deadline_s)
            for rank, part in enumerate(parts[parity]):
                theirs = slice(edges[rank], edges[rank + 1])
                target[theirs] = part[theirs]

    # ------------------------------------------------------------------------------------- steps

    @property
    def _parity(self) -> int:
        """Return which of its slots this rank fills next."""
        return ~self._step & 1

    def _prepare(self, key: Any, what: str, like: Array, op: ReduceOp | None) -> _Exchange:
        """Return views of all slots for tensors like this one, and what it is reduced with."""
        text = f"{what} of {described(like)}"
        combine = None
        if op is not None:
            combine = reduction(op, DType.from_numpy(like.dtype), self.world_size)
        if like.dtype.hasobject:
            raise CommunicatorError(f"{text}: only numbers go from rank to rank")
        views = [
            [_view(segment.slot(parity), like) for segment in self._segments] for parity in (0, 1)
        ]  # fmt: skip
        own = views[0][self.rank], views[1][self.rank]
        signature = zlib.crc32(text.encode())
        most = SLOT_BYTES if self.world_size <= 2 else _DIRECT_BYTES
        prepared = _Exchange(
            signature,
            text,
            encoded(text),
            own,
            (views[0], views[1]),
            combine,
            like.nbytes <= most,
        )
        if len(self._prepared) >= _MOST_PREPARED:
            self._prepared.clear()
        self._prepared[key] = prepared
        return prepared

    def _chunks(self, flat: Array) -> Iterator[tuple[int, tuple[Array, Array], list[list[Array]]]]:
        """Yield (first element, own slots, all ranks' slots) for each piece of a large tensor."""
        length = SLOT_BYTES // flat.itemsize
        views = [[segment.slot(parity).view(flat.dtype)[:length] for segment in self._segments]
                 for parity in (0, 1)]  # fmt: skip
        for begin in range(0, flat.size, length):
            if flat.size - begin < length:
                views = [[view[: flat.size - begin] for view in of_parity] for of_parity in views]
            yield begin, (views[0][self.rank], views[1][self.rank]), views

    def _round(self, prepared: _Exchange, parity: int, deadline_s: float | None) -> None:
        """Say that this rank's slot is filled, and wait until all are, for the same collective."""
        word, signature = _SIGNATURE_WORDS[parity], prepared.signature
        if self.words[word] != signature:
            self.own.say(word, prepared.encoded, signature)
        self._step = step = self._step + 1
        self.tell(ROUND, step, self.peers)
        if self.ended:
            self.refuse_ended()
        for peer in self.peers:
            words = peer.words
            if words[ROUND] < step:
                self.wait(peer, ROUND, step, deadline_s, prepared.text)
            if words[STATE] == ABORTED:  # what it left is right, but the others failed
                raise self.end_of(peer, prepared.text)
            if words[word] != signature:
                raise self.mismatch(peer.rank, prepared.text, peer.segment.said(word))
        if not ORDERED:
            fence()

    def close(self) -> None:
        """Leave the group."""
        super().close()
        self._prepared.clear()


def _view(slot: Array, like: Array) -> Array:
    """Return the beginning of a slot as a tensor; of one that does not fit, nothing."""
    if like.nbytes > slot.size:
        return slot[:0]
    return slot[: like.nbytes].view(like.dtype).reshape(like.shape)


def _steps(size: int, most: int) -> range:
    """Return where the pieces of so many bytes begin: there is one at least, be it empty."""
    return range(0, max(size, 1), most)
