"""Checks every request before the application, and adds security headers to every response.

- The Host header must be a name of this machine, or a web page elsewhere could point its own name here (DNS rebinding) and read
  what the explorer answers.
- A body is read whole, up to a limit and within a time, before anything else looks at it.
- A browser may load nothing from elsewhere, and no other page may frame this one.
"""

from collections.abc import Sequence

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY = 1 << 20  # bytes; a sentence of 4,000 characters as \\u escapes, a target, and an alpha for every head fit in
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
BASE_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class SecurityMiddleware:
    """The outermost layer, plain ASGI.

    Args:
        hosts: names that requests may call this server by, without port; "*" allows any.
        seconds: for a body to arrive.
    """

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str], seconds: float) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", BASE_POLICY)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        async def refuse(status: int, why: str) -> None:
            await JSONResponse({"detail": why}, status, {"Connection": "close"})(scope, receive, send_safely)

        host = _without_port(Headers(scope=scope).get("host", ""))
        if "*" not in self._hosts and host not in self._hosts:
            allowed = ", ".join(sorted(self._hosts))
            await refuse(400, f"this server is called {allowed}, and the request asks for another host.")
            return
        try:
            with anyio.fail_after(self._seconds):
                body = await _body(scope, receive)
        except TimeoutError:
            await refuse(408, f"the request did not arrive within {self._seconds:g} seconds.")
            return
        if body is None:
            await refuse(413, f"the request is larger than {LARGEST_BODY:,} bytes; send one sentence.")
            return
        await self._app(scope, _replayed(body, receive), send_safely)


async def _body(scope: Scope, receive: Receive) -> list[Message] | None:
    """The messages that carry the body; None: too large."""
    declared = Headers(scope=scope).get("content-length", "")
    if declared.isdecimal() and (len(declared) > 9 or int(declared) > LARGEST_BODY):
        return None
    messages: list[Message] = []
    size = 0
    while True:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        if size > LARGEST_BODY:
            return None
        if message["type"] != "http.request" or not message.get("more_body", False):
            return messages


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    waiting = iter(messages)

    async def again() -> Message:
        message = next(waiting, None)
        return await receive() if message is None else message

    return again


def _without_port(host: str) -> str:
    """ "localhost:8000" -> "localhost", "[::1]:8000" -> "[::1]"."""
    host = host.lower()
    end = host.find("]")
    return host[: end + 1] if host.startswith("[") and end > 0 else host.partition(":")[0]
