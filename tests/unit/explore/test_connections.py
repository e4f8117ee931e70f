"""Clients that send half a request, read nothing or are too many: they are cut off, and the others are answered."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn

from entformer.explore.connections import LimitedProtocol

LONG = 60.0  # seconds until a test that hangs is given up; none takes as long
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LARGE = 32 << 20  # bytes, more than the system keeps for a client that does not read


async def app(scope: Any, receive: Any, send: Any) -> None:
    body = b"x" * LARGE if scope["path"] == "/large" else b"fine"
    head = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    for at in range(0, len(body), 1 << 20):
        await send({"type": "http.response.body", "body": body[at : at + (1 << 20)], "more_body": at + (1 << 20) < len(body)})


class Connect:
    """Opens connections to a server."""

    def __init__(self, server: uvicorn.Server, address: Any) -> None:
        self.open_connections = server.server_state.connections
        self._address = address

    def __call__(self) -> socket.socket:
        return socket.create_connection(self._address, timeout=LONG)


@pytest.fixture
def serve() -> Iterator[Callable[..., Connect]]:
    servers: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(**limits: float) -> Connect:
        protocol = type("Limited", (LimitedProtocol,), limits)
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, http=protocol, ws="none", lifespan="off", log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        servers.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        return Connect(server, listener.getsockname())

    yield start
    for server, thread in servers:
        server.should_exit = True
        thread.join(LONG)


def received(client: socket.socket) -> bytes:
    """All that comes until the server ends the connection; times out if it does not."""
    answer = bytearray()
    with client, contextlib.suppress(ConnectionError):
        while more := client.recv(1 << 16):
            answer += more
    return bytes(answer)


def ask(connect: Connect, path: bytes = b"/") -> bytes:
    client = connect()
    client.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path)
    return received(client)


@pytest.mark.parametrize("begun", [b"", b"GET / HT", REQUEST[:-2], REQUEST + b"GET / HTTP/1.1\r\nHost:"])
def test_half_a_head_does_not_hold_a_connection(serve: Callable[..., Connect], begun: bytes) -> None:
    connect = serve(head_seconds=0.3)
    clients = [connect() for _ in range(20)]
    for client in clients:
        client.sendall(begun)
    assert ask(connect).startswith(b"HTTP/1.1 200")
    for client in clients:
        received(client)


def test_a_head_sent_drop_by_drop_does_not_hold_a_connection(serve: Callable[..., Connect]) -> None:
    connect = serve(head_seconds=0.3)
    client = connect()
    client.sendall(b"GET / HTTP/1.1\r\n")
    cut, end = False, time.monotonic() + LONG
    while not cut and time.monotonic() < end:
        try:
            client.sendall(b"X-More: 1\r\n")  # each drop comes long before the time is over
            time.sleep(0.02)
        except ConnectionError:
            cut = True
    assert cut


def test_one_connection_too_many_is_refused_and_the_others_stay(serve: Callable[..., Connect]) -> None:
    connect = serve(most_connections=3, head_seconds=LONG)
    held = [connect() for _ in range(3)]
    for client in held:
        client.sendall(REQUEST)
        assert client.recv(4096).startswith(b"HTTP/1.1 200")  # so the server has seen it
    answer = received(connect())
    assert answer.startswith(b"HTTP/1.1 503")
    assert answer.endswith(b'{"detail":"too many connections are open; try again in a moment."}')
    for client in held:
        client.close()
    while b"503" in (answer := ask(connect)):  # until the server has noticed that they left
        time.sleep(0.02)
    assert answer.startswith(b"HTTP/1.1 200")


def test_a_client_that_does_not_read_is_cut_off(serve: Callable[..., Connect]) -> None:
    connect = serve(read_seconds=0.3)
    client = connect()
    client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert client.recv(1) == b"H"  # the answer has begun; from now on the client does not read
    while connect.open_connections:  # until the server has given it up
        time.sleep(0.02)
    assert len(received(client)) < LARGE


def test_a_client_that_reads_gets_everything(serve: Callable[..., Connect]) -> None:
    assert len(ask(serve(), b"/large")) > LARGE
