"""`entformer explore`: serves an interactive page for one trained run until Ctrl-C.

The address is bound before the model is loaded, so that a port in use is reported at once.
"""

import contextlib
import ipaddress
import os
import socket
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from entformer.cli.options import Checkpoint, Device, Threads
from entformer.errors import ArgumentError, EntformerError

if TYPE_CHECKING:
    from entformer.checkpoint.language_model import LoadedLM

EXAMPLE_TOKENS, MOST_WINDOWS = 16, 1000  # of texts to continue, and how many are looked at
ANY_ADDRESS = ("0.0.0.0", "::")


def explore(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="Run directory of `entformer train`.")] = None,
    hf: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|MODULE",
            help="Instead of a run, a Hugging Face decoder: a saved directory, or package.module:function.",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. By default only this machine can connect; 0.0.0.0 allows any machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")] = 8765,
    open_page: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the page in a browser.", show_default="if there is a display")
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of tokens.", show_default="100 of a sentence, 512 of a text to continue"),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time limit of a request.")] = 30.0,
    checkpoint: Checkpoint = "best",
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Explore a model in the browser: type a sentence, look at every head, try other alphas. Also serves a JSON API.

    A translation run translates it; a language model continues it.
    """
    import torch
    import uvicorn

    from entformer.checkpoint import RunFolder, load_run
    from entformer.checkpoint.language_model import is_language_model, load_language_model
    from entformer.cli.test_sets import sample_data
    from entformer.explore.app import create_app
    from entformer.explore.connections import LimitedProtocol

    if threads is not None:
        torch.set_num_threads(threads)
    notes = Console(stderr=True, highlight=False, soft_wrap=True)
    if (run is None) == (hf is None):
        raise ArgumentError("give a run directory, or --hf with a Hugging Face model.")
    allowed = _allowed_hosts(host)
    with _listen(host, port) as listener:
        model: Any
        training_text = None
        if run is None:
            from entformer.hf.opening import open_model

            model = open_model(str(hf))
            about = name = Path(str(hf)).resolve().name if Path(str(hf)).is_dir() else str(hf)
            examples = ["The cat sat on the mat. The dog sat on the"]
        elif RunFolder(run).metrics.is_file() and not RunFolder(run).complete():
            model, name, examples = None, run.resolve().name, []
            about = f"{name} has no checkpoint yet; the page shows its training"
        elif is_language_model(run):
            model, name = load_language_model(run, checkpoint, device=device), run.resolve().name
            about = f"language model, step {model.step}"
            examples = _example_texts(run, model)
        else:
            model, name = load_run(run, checkpoint, device=device), run.resolve().name
            about = f"{model.source_language} -> {model.target_language}, step {model.step}"
            examples, training_text = sample_data(run, model)
        limits: dict[str, Any] = {"max_tokens": max_tokens, "timeout": timeout, "hosts": allowed}
        app = create_app(model, name=name, folder=run, examples=examples, training_text=training_text, **limits)
        shown = "127.0.0.1" if host in ANY_ADDRESS else f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/"
        notes.print(f"{about}: {address} (press Ctrl-C to stop)")
        if "*" in allowed:
            notes.print("warning: everyone who reaches this machine over the network can use this page.", style="yellow")
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            http=LimitedProtocol,
            ws="none",
            timeout_graceful_shutdown=2,
        )
        if _has_display() if open_page is None else open_page:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as err:
        raise ArgumentError(f"--host {host} is not a known name or address ({err.strerror}).") from err
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as err:
        listener.close()
        raise ArgumentError(
            f"{host}:{port} cannot be used ({err.strerror}); choose another port with --port, or a free one with --port 0."
        ) from err
    return listener


def _allowed_hosts(host: str) -> Sequence[str]:
    """Returns the accepted Host headers: names of this machine if only it can connect, otherwise any."""
    from entformer.explore.security import LOOPBACK

    if host == "localhost":
        return LOOPBACK
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ["*"]
    return [*LOOPBACK, f"[{address}]" if address.version == 6 else str(address)] if address.is_loopback else ["*"]


def _has_display() -> bool:
    """Returns whether to open a browser: over ssh, the only one may be a text browser that takes over the terminal."""
    display = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return display and sys.stdout.isatty()


def _example_texts(run: Path, loaded: "LoadedLM") -> list[str]:
    """Returns the beginnings of a few documents of the run's own test or validation text; none if the text is gone."""
    from entformer.analysis.language_model_report import cut_windows
    from entformer.cli.test_sets import EXAMPLES
    from entformer.cli.text_score import text_to_score

    with contextlib.suppress(EntformerError, OSError):
        _, ids, _ = text_to_score(run, loaded, data=None, split=None, file=None)
        windows = cut_windows(ids, EXAMPLE_TOKENS, MOST_WINDOWS)
        chosen = windows[:: max(1, len(windows) // EXAMPLES)][:EXAMPLES]
        texts = (" ".join(loaded.tokenizer.decode(window).split()) for window in chosen)
        whole = (text.rpartition(" ")[0] or text for text in texts)  # the last word may be cut
        return list(dict.fromkeys(text for text in whole if text))
    return []
