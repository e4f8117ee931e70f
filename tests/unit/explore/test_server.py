"""Many at once, too slow, from elsewhere: the explorer answers all it can correctly, and refuses the rest in a sentence."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from entformer.checkpoint import LoadedRun
from entformer.explore import create_app

from .conftest import SENTENCE, Client, sentence_of

MakeRun = Callable[..., LoadedRun]
SHORT = {"text": "a man", "beam": 1}


def without_time(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != "milliseconds"}


def test_fifty_requests_at_once_get_what_each_would_get_alone(client: Client) -> None:
    texts = ("a man", "two dogs", "the red hat", "Der Mann !")
    heads = [f"{kind}.{layer}.{head}" for kind, layer in (("encoder", 0), ("decoder", 1), ("cross", 1)) for head in (0, 1)]
    bodies = [
        {"text": texts[i % 4], "beam": 2, "alphas": {heads[i % 6]: 1 + (i % 7) / 2} if i % 5 else {}, "n_best": 1 + i % 2}
        for i in range(50)
    ]
    addresses = ["/api/translate" if i % 2 else "/api/attention" for i in range(50)]
    for body, address in zip(bodies, addresses, strict=True):
        if address == "/api/attention":
            del body["n_best"]

    async def all_at_once(http: httpx.AsyncClient) -> list[httpx.Response]:
        asked = (http.post(address, json=body) for body, address in zip(bodies, addresses, strict=True))
        return list(await asyncio.gather(*asked))

    async def one_by_one(http: httpx.AsyncClient) -> list[httpx.Response]:
        return [await http.post(address, json=body) for body, address in zip(bodies, addresses, strict=True)]

    together, alone = client.together(all_at_once), client.together(one_by_one)
    assert {answer.status_code for answer in together} == {200}
    assert [without_time(answer.json()) for answer in together] == [without_time(answer.json()) for answer in alone]
    assert len({answer.text for answer in alone}) > 20  # the requests did ask for different things


class Slow:
    """A run whose decoder waits at every step, and counts them."""

    def __init__(self, make_run: MakeRun, seconds: float = 0.0) -> None:
        self.run = make_run()
        self.steps = 0
        self.go_on = threading.Event()
        self.started = threading.Event()
        step = self.run.model.step

        def slow(*arguments: Any) -> Any:
            self.steps += 1
            self.started.set()
            time.sleep(seconds) if seconds else self.go_on.wait(60)
            return step(*arguments)

        object.__setattr__(self.run.model, "step", slow)


def test_a_request_that_takes_too_long_is_given_up_and_its_work_ends(make_run: MakeRun) -> None:
    slow = Slow(make_run, 0.1)
    client = Client(create_app(slow.run, timeout=0.3))
    assert "longer than 0.3 seconds" in sentence_of(client.translate(SENTENCE), 504)
    done = slow.steps
    assert done <= 4
    time.sleep(0.3)
    assert slow.steps == done  # nothing goes on in the background
    assert all(module.alpha_override is None for _, _, module in slow.run.model.attention_layers())


def test_others_are_answered_while_the_model_works_and_not_too_many_wait(make_run: MakeRun) -> None:
    slow = Slow(make_run)
    client = Client(create_app(slow.run, timeout=900.0, waiting=2))

    async def ask(http: httpx.AsyncClient) -> tuple[httpx.Response, list[httpx.Response]]:
        asked = [asyncio.create_task(http.post("/api/translate", json=SHORT)) for _ in range(3)]
        while (await http.get("/api/health")).json() != {"status": "ok", "waiting": 2}:
            await asyncio.sleep(0.01)
        refused = await http.post("/api/translate", json=SHORT)
        slow.go_on.set()
        return refused, await asyncio.gather(*asked)

    refused, answers = client.together(ask)
    assert "waiting for the model already" in sentence_of(refused, 503)
    assert refused.headers["retry-after"] == "1"
    assert {answer.status_code for answer in answers} == {200}
    assert client.get("/api/health").json() == {"status": "ok", "waiting": 0}


def test_who_waits_too_long_is_told(make_run: MakeRun) -> None:
    slow = Slow(make_run)
    client = Client(create_app(slow.run, timeout=0.5))

    async def ask(http: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        first = asyncio.create_task(http.post("/api/translate", json=SHORT))
        await asyncio.to_thread(slow.started.wait, 60)
        second = await http.post("/api/translate", json=SHORT)
        slow.go_on.set()
        return await first, second

    first, second = client.together(ask)
    assert "longer than 0.5 seconds" in sentence_of(first, 504)
    assert "busy with other requests" in sentence_of(second, 503)
    assert client.get("/api/health").status_code == 200


def test_work_ends_when_the_client_goes_away(make_run: MakeRun) -> None:
    slow = Slow(make_run, 0.2)
    app = create_app(slow.run, timeout=900.0)
    body = b'{"text": "a man in an orange hat"}'

    async def leave() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        messages = [{"type": "http.request", "body": body}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            if not slow.started.is_set():
                await asyncio.sleep(900)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/api/translate", "headers": headers, "query_string": b""}
        await app({**scope, "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"}, receive, send)  # type: ignore[arg-type]
        return sent

    asyncio.run(leave())
    assert slow.steps < 20  # 22 would be all


def test_a_failing_model_is_said_without_its_insides(make_run: MakeRun) -> None:
    run = make_run()

    def broken(*_: Any) -> None:
        raise RuntimeError("secret place")

    object.__setattr__(run.model, "step", broken)
    client = Client(create_app(run))
    said = sentence_of(client.translate(alphas={"cross.0.0": 1.0}), 500)
    assert "RuntimeError" in said
    assert "secret" not in said
    assert all(module.alpha_override is None for _, _, module in run.model.attention_layers())
    assert client.get("/api/health").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil", "[::2]"])
def test_another_host_is_refused(client: Client, host: str) -> None:
    assert "another host" in sentence_of(client.get("/api/model", headers={"Host": host}), 400)


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost", "LOCALHOST:80", "[::1]:8765"])
def test_names_of_this_machine_are_answered(client: Client, host: str) -> None:
    assert client.get("/api/health", headers={"Host": host}).status_code == 200


def test_a_browser_may_load_nothing_from_elsewhere(client: Client) -> None:
    page = client.get("/")
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"].startswith("'sha256-")
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in page.headers["content-security-policy"]
    for answer in (page, client.get("/api/model"), client.get("/nothing")):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers
    assert "http://" not in page.text.replace("http://www.w3.org", "")
    assert "https://" not in page.text


OPENED: list[str] = []
LISTENING = threading.Event()


def test_no_request_touches_the_disk(client: Client) -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if LISTENING.is_set() and event in ("open", "os.listdir", "os.scandir", "subprocess.Popen", "socket.connect"):
            OPENED.append(f"{event} {arguments[0]}")

    def ask_everything() -> None:
        for path in ("/", "/api/model", "/api/health", "/openapi.json", "/..%2f..%2fetc/passwd", "/api/%2fetc%2fpasswd"):
            client.get(path)
        for text in ("/etc/passwd", "file:///etc/passwd", "../../etc/passwd"):
            client.translate(text, prefix=text)
            client.attention(text, target=text)

    ask_everything()  # what is imported on first use is imported now
    sys.addaudithook(hook)
    LISTENING.set()
    try:
        ask_everything()
    finally:
        LISTENING.clear()
    assert OPENED == []


def test_the_description_names_every_address_and_its_refusals(app: FastAPI) -> None:
    paths = app.openapi()["paths"]
    assert set(paths) == {"/api/health", "/api/model", "/api/training", "/api/translate", "/api/attention"}
    for path in ("/api/translate", "/api/attention"):
        responses = paths[path]["post"]["responses"]
        assert {"200", "400", "413", "422", "503", "504"} <= set(responses)
        for status in ("422", "503", "504"):
            assert responses[status]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorResponse")
