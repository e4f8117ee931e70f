"""`entformer explore`: a live page for one trained run. In: a run folder. Out: a server on this machine, until Ctrl-C.

The address is taken before the model is loaded, so a port in use shows at once. Only this machine can reach it unless --host
says otherwise.
"""

import contextlib
import ipaddress
import os
import socket
import sys
import warnings
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import uvicorn
from rich.console import Console

from entformer.checkpoint import LoadedRun, load_run
from entformer.cli.test_sets import prepared_of_run
from entformer.errors import ArgumentError, EntformerError
from entformer.explore.app import create_app
from entformer.explore.connections import LimitedProtocol
from entformer.explore.security import LOOPBACK

EXAMPLES = 4  # sentences offered to begin with
PLEASANT = range(20, 90)  # characters of such a sentence
ANYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Options:
    """What the command line asks for; see `cli/commands_analysis.py` for the words of each."""

    host: str = "127.0.0.1"
    port: int = 8765
    which: str = "best"
    max_tokens: int = 100
    timeout: float = 30.0
    threads: int | None = None
    device: str = "cpu"
    open_page: bool | None = None


def run(folder: Path, options: Options) -> None:
    """Serve until Ctrl-C."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    notes = Console(stderr=True, highlight=False, soft_wrap=True)
    with _listening(options.host, options.port) as listener:
        loaded = load_run(folder, options.which, device=options.device)
        app = create_app(
            loaded,
            name=folder.resolve().name,
            max_tokens=options.max_tokens,
            timeout=options.timeout,
            hosts=_names(options.host),
            examples=_examples(folder, loaded),
        )
        address = _address(options.host, listener.getsockname()[1])
        notes.print(f"{loaded.source_language} -> {loaded.target_language}, step {loaded.step}: {address} (Ctrl-C ends it)")
        if "*" in _names(options.host):
            notes.print("warning: everyone who reaches this machine over the network can use it.", style="yellow")
        settings = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            http=LimitedProtocol,
            ws="none",
            timeout_graceful_shutdown=2,
        )
        if _wants_page(options.open_page):
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(settings).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    """A socket that has the address, or one sentence why not."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as problem:
        raise ArgumentError(f"--host {host} is not a name or address this machine knows ({problem.strerror}).") from problem
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as problem:
        listener.close()
        raise ArgumentError(
            f"{host}:{port} cannot be used ({problem.strerror}); choose another with --port, or --port 0 for any free one."
        ) from problem
    return listener


def _names(host: str) -> Sequence[str]:
    """The Host headers to answer to: names of this machine where only this machine can ask, else any."""
    if host == "localhost":
        return LOOPBACK
    try:
        own = ipaddress.ip_address(host)
    except ValueError:
        return ["*"]
    return [*LOOPBACK, f"[{own}]" if own.version == 6 else str(own)] if own.is_loopback else ["*"]


def _address(host: str, port: int) -> str:
    shown = "127.0.0.1" if host in ANYWHERE else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/"


def _wants_page(requested: bool | None) -> bool:
    """Unless told, where a person sits at a screen: over ssh the only browser may be one that takes the terminal."""
    if requested is not None:
        return requested
    screen = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return screen and sys.stdout.isatty()


def _examples(folder: Path, loaded: LoadedRun) -> list[str]:
    """A few sentences of the run's own test data, if it is still there; the page does well without."""
    with contextlib.suppress(EntformerError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # data that changed since training still have sentences
        prepared = prepared_of_run(folder)
        part = next((name for name in ("test", "valid") if name in prepared.splits), None)
        if part is None:
            return []
        sources, targets = prepared.text(part)
        lines = sources if prepared.source_language == loaded.source_language else targets
        fitting = [line for line in dict.fromkeys(lines) if len(line) in PLEASANT]
        questions = [line for line in fitting if line.rstrip().endswith("?")][:1]
        spread = fitting[:: max(1, len(fitting) // EXAMPLES)]
        return list(dict.fromkeys([*spread[: EXAMPLES - len(questions)], *questions]))
    return []
