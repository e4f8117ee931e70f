"""Limits on connections, for uvicorn. In: sockets of clients. Out: uvicorn's HTTP protocol, or a closed connection.

uvicorn waits for the head of a request as long as the client likes, and for a client that does not read its answer too. Here
each of these has a time, and there is a largest number of connections: one more is refused at once.

    uvicorn.Config(app, http=LimitedProtocol, ...)
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # from the beginning of a connection, or the first byte of a further request, to the end of its head
READ_SECONDS = 30.0  # for a client to take what waits for it
MOST_CONNECTIONS = 256
_BUSY = b'{"detail":"too many connections are open; try again in a moment."}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BUSY), _BUSY)
)


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol with limits on time and number."""

    head_seconds = HEAD_SECONDS
    read_seconds = READ_SECONDS
    most_connections = MOST_CONNECTIONS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            transport.write(_REFUSAL)
            transport.close()
            return
        self._head_timer = self.loop.call_later(self.head_seconds, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("_head_timer")
        self._stop("_read_timer")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # the head of a request is there
            self._stop("_head_timer")
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self.transport.abort)

    def pause_writing(self) -> None:
        """The client does not read as fast as we write."""
        super().pause_writing()
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(self.read_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop("_read_timer")
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """No further request came. What the client has not read by now would keep an orderly close waiting."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(self.read_seconds, self.transport.abort)

    def _stop(self, name: str) -> None:
        timer: asyncio.TimerHandle | None = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)
