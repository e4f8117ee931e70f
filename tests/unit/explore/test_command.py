"""`entformer explore`: what it listens on, whom it answers, and what it says when it cannot."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from entformer.checkpoint import LoadedRun, RunFolder
from entformer.cli.explore import explore
from entformer.errors import ArgumentError, DataError
from entformer.explore.connections import LimitedProtocol

from .conftest import Client


@pytest.fixture
def folder(make_run: Callable[..., LoadedRun], save_run: Callable[[LoadedRun, Path], RunFolder], tmp_path: Path) -> Path:
    return save_run(make_run(), tmp_path / "my run").path


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, tuple[str, int]]]:
    """What would be served, and where, instead of serving it."""
    found: list[tuple[Any, tuple[str, int]]] = []

    def instead(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        assert server.config.http is LimitedProtocol  # uvicorn's own waits for ever
        found.append((server.config.app, sockets[0].getsockname()[:2]))

    monkeypatch.setattr(uvicorn.Server, "run", instead)
    return found


def test_it_listens_on_this_machine_only(folder: Path, served: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    explore(folder, port=0, open_page=False)
    ((app, (host, port)),) = served
    assert host == "127.0.0.1"
    assert f"http://127.0.0.1:{port}/" in capsys.readouterr().err
    client = Client(app)
    assert client.get("/api/model").json()["name"] == "my run"
    assert client.get("/api/model", headers={"Host": f"localhost:{port}"}).status_code == 200
    assert client.get("/api/model", headers={"Host": "evil.example"}).status_code == 400


def test_another_host_answers_everyone_and_says_so(folder: Path, served: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    explore(folder, host="0.0.0.0", port=0, open_page=False, max_tokens=7)
    ((app, _),) = served
    assert "everyone who reaches this machine" in capsys.readouterr().err
    answer = Client(app).get("/api/model", headers={"Host": "my-machine.example"}).json()
    assert answer["limits"]["tokens"] == 7


def test_a_port_in_use_is_said_before_the_model_is_loaded(tmp_path: Path, served: list[Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ArgumentError, match=rf"127.0.0.1:{port} cannot be used .* --port"):
            explore(tmp_path / "no run", port=port)
    assert served == []


def test_a_wrong_run_or_host_is_one_sentence(tmp_path: Path, served: list[Any]) -> None:
    with pytest.raises(DataError, match="there is no run directory"):
        explore(tmp_path / "no run", port=0)
    with pytest.raises(ArgumentError, match=r"--host no\.such\.host\.invalid"):
        explore(tmp_path, host="no.such.host.invalid", port=0)


def test_a_browser_is_opened_on_request(folder: Path, served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    explore(folder, port=0, open_page=True)
    assert opened == [f"http://127.0.0.1:{served[0][1][1]}/"]
