"""uvicorn's HTTP protocol with limits, and with an end that loses no request.

The limits are for the time of a request and of an answer's way to its client, and for the number of
connections.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from engine_serve.bearer import Bearer
from engine_serve.body import Room
from engine_serve.http_infer import InferProtocol


def _refusal(status: str, text: str) -> bytes:
    """Return an answer after which the connection is closed."""
    body = json.dumps({"error": text})
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}"
    ).encode()


_BUSY = _refusal("503 Service Unavailable", "too many connections")


def limited(
    pause_s: float,
    transfer_s: float,
    connections: int,
    room_: Room,
    bearer_: Bearer,
    ending: asyncio.Event,
) -> type[InferProtocol]:
    """Return the class of a protocol with these limits.

    pause_s: from a connection's begin, or from a request's first byte, until its headers are
    complete, for each next part of a body, and until a client takes more of its answer.
    transfer_s: for the whole of a request, and for an answer. room_: for the bodies of inferences;
    bearer_: what clients must show to get it. ending: set when the server begins to end; each
    answer then says that it is its connection's last.

    With a token, a new connection beyond the limit takes the place of one that has not shown it, an
    idle one if there is any: clients without the token cannot keep all places. Which one is random:
    the more of them there are, the less likely it is one that is about to show the token.
    """
    slow = _refusal(
        "408 Request Timeout",
        f"the request did not come: expected more of its body within {pause_s:g} s, and all of it "
        f"within {transfer_s:g} s",
    )

    class Limited(InferProtocol):
        """Closes connections that send or read too slowly, and those that are too many."""

        room, bearer = room_, bearer_
        is_refused = False
        is_begun = False  # the request that comes
        has_headers = False
        timer: asyncio.TimerHandle | None = None  # of what comes
        stall: asyncio.TimerHandle | None = None  # of what goes

        def connection_made(self, transport: Any) -> None:
            if len(self.connections) >= connections and not make_room():
                transport.write(_BUSY)
                transport.close()
                self.is_refused = True
                return
            super().connection_made(transport)
            if self.bearer:
                unauthenticated.add(self)
            self.due_s = self.loop.time() + transfer_s
            self.expect()

        def data_received(self, data: bytes) -> None:
            if self.is_refused:
                return
            super().data_received(data)
            is_idle = self.cycle is not None and self.cycle.response_complete
            if is_idle and self.timer is None and self.timeout_keep_alive_task is None:
                # What came is no request, or the rest of one that was answered before.
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

        def connection_lost(self, exc: Exception | None) -> None:
            if self.is_refused:
                return
            unauthenticated.discard(self)
            self.relax()
            self.resume_writing()
            super().connection_lost(exc)

        @property
        def is_answering(self) -> bool:
            is_running = self.cycle is not None and not self.cycle.response_complete
            return is_running or self.transport.get_write_buffer_size() > 0

        # ------------------------------------------------------------------------- what comes

        def expect(self) -> None:
            self.relax()
            left_s = min(pause_s, self.due_s - self.loop.time())
            self.timer = self.loop.call_later(max(0.0, left_s), self.give_up)

        def relax(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def give_up(self) -> None:
            self.timer = None
            if self.flow.read_paused:  # it is the server that does not read: another request runs
                self.due_s = self.loop.time() + transfer_s
                self.expect()
                return
            if self.has_headers and not self.pipeline and not self.cycle.response_started:
                self.transport.write(slow)
            self.end()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.has_headers = False
            self.is_begun = True
            self.due_s = self.loop.time() + transfer_s
            self.expect()

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            self.has_headers = True
            if self in unauthenticated:
                authorization = dict(self.headers).get(b"authorization", b"")
                if self.bearer.is_shown(authorization):
                    unauthenticated.remove(self)
            if ending.is_set():
                self.cycle.keep_alive = False

        def on_body(self, body: bytes) -> None:
            super().on_body(body)
            self.expect()

        def on_message_complete(self) -> None:
            self.relax()
            self.is_begun = False
            super().on_message_complete()

        # -------------------------------------------------------------------------- what goes

        def pause_writing(self) -> None:
            super().pause_writing()
            self.watch(self.loop.time() + transfer_s)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self.stall is not None:
                self.stall.cancel()
                self.stall = None

        def watch(self, due_s: float) -> None:
            """Look again whether the client takes its answer."""
            left = self.transport.get_write_buffer_size()
            wait_s = max(0.0, min(pause_s, due_s - self.loop.time()))
            self.stall = self.loop.call_later(wait_s, self.look, left, due_s)

        def look(self, before: int, due_s: float) -> None:
            left = self.transport.get_write_buffer_size()
            if left >= before or self.loop.time() >= due_s:
                self.transport.abort()
            else:
                self.watch(due_s)

        def end(self) -> None:
            """Close the connection; at once where the client does not take its answer."""
            if self.stall is None:
                self.transport.close()
            else:
                self.transport.abort()

        def timeout_keep_alive_handler(self) -> None:
            if self.transport.get_write_buffer_size():
                self.transport.abort()
            else:
                super().timeout_keep_alive_handler()

        def shutdown(self) -> None:
            if not self.is_begun or (self.has_headers and not self.cycle.response_complete):
                super().shutdown()

    unauthenticated: set[Limited] = set()  # connections that have not shown the token

    def make_room() -> bool:
        """Close a connection that has not shown the token; return False where there is none."""
        if not unauthenticated:
            return False
        idle = [connection for connection in unauthenticated if not connection.is_answering]
        closed = random.choice(idle or [*unauthenticated])
        unauthenticated.remove(closed)
        if closed.transport.get_extra_info("sslcontext"):  # else its end waits for the client
            closed.relax()
            closed.transport.abort()
            return True
        if closed.cycle is None and not closed.is_begun:
            closed.transport.write(_BUSY)
        closed.end()
        return True

    return Limited
