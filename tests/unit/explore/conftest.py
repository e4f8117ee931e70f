"""The explorer of a small run, and ways to ask it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from entformer.checkpoint import LoadedRun
from entformer.explore import create_app

BASE = "http://127.0.0.1"
SENTENCE = "a man in an orange hat"


@pytest.fixture(scope="session")
def app(make_run: Callable[..., LoadedRun]) -> FastAPI:
    return create_app(make_run(), name="small", max_tokens=30, timeout=900.0)  # slow machines must not fail


class Client:
    """Asks an app without a network, each time in an event loop of its own."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def together(self, work: Callable[[httpx.AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
        async def run() -> Any:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=BASE, timeout=None) as client:
                return await work(client)

        return asyncio.run(run())

    def request(self, method: str, address: str, **options: Any) -> httpx.Response:
        found: httpx.Response = self.together(lambda client: client.request(method, address, **options))
        return found

    def get(self, address: str, **options: Any) -> httpx.Response:
        return self.request("GET", address, **options)

    def translate(self, text: str = SENTENCE, **more: Any) -> httpx.Response:
        return self.request("POST", "/api/translate", json={"text": text, **more})

    def attention(self, text: str = SENTENCE, **more: Any) -> httpx.Response:
        return self.request("POST", "/api/attention", json={"text": text, **more})


@pytest.fixture
def client(app: FastAPI) -> Client:
    return Client(app)


def sentence_of(answer: httpx.Response, status: int) -> str:
    """The one sentence of a refusal."""
    assert answer.status_code == status, answer.text
    content = answer.json()
    assert list(content) == ["detail"]
    said: str = content["detail"]
    assert said.endswith(".")
    assert "\n" not in said
    return said
