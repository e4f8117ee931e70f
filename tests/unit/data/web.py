"""A web server on this machine, and a small corpus on it."""

import gzip
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from entformer.data import downloads
from entformer.data.datasets import Corpus, Download, Layout, Piece


@dataclass
class Web:
    """What the test server holds and what it was asked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    tag: str = '"one"'
    cut_after: int | None = None  # bytes of a body, then the connection ends
    with_length: bool = True  # whether Content-Length is sent
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range header


def serve() -> Iterator[Web]:
    """Runs while the generator is not finished."""
    state = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
            body = state.files.get(self.path.lstrip("/"))
            if body is None:
                self.send_error(404)
                return
            start = 0
            if wanted and state.ranges and self.headers.get("If-Range", state.tag) == state.tag:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(body):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(body)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            self.send_header("ETag", state.tag)
            if state.with_length:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            rest = body[start:]
            if state.cut_after is not None:
                rest, state.cut_after = rest[: state.cut_after], None
            self.wfile.write(rest)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def dead_url() -> str:
    """An address of this machine where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


SGM = (
    '<srcset setid="x"><doc>\n<p>\n<seg id="1"> {0} &amp; more </seg>\n<seg id="2">{0} two\nlines</seg>\n</p></doc></srcset>\n'
)


def tar(entries: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in entries.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def zipped(entries: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in entries.items():
            archive.writestr(name, text)
    return buffer.getvalue()


FILES = {
    "one.tgz": tar(
        {
            "./training/news.de-en.de": "eins\nzwei\n",
            "./training/news.de-en.en": "one\ntwo\n",
            "dev/dev-src.de.sgm": SGM.format("Prüfung"),
            "dev/dev-ref.en.sgm": SGM.format("check"),
        }
    ),
    "ted.zip": zipped(
        {
            "de-en/train.tags.de-en.de": "<url>http</url>\n<title>Titel</title>\n drei \n<reviewer></reviewer>\n",
            "de-en/train.tags.de-en.en": "<url>http</url>\n<title>title</title>\n three \n",
        }
    ),
    "test.de.gz": gzip.compress(b"vier\n"),
    "test.en.gz": gzip.compress(b"four\n"),
}


def small_corpus(web: Web) -> Corpus:
    """A small corpus that has everything the real ones have: .tgz, .zip, .gz, SGML, tags, a split of two pieces."""
    web.files.update(FILES)
    layout = Layout(
        "raw",
        tuple(Download(file, f"{web.url}/{file}") for file in FILES),
        {
            "train": (
                Piece("training/news.de-en.de", "training/news.de-en.en", "one.tgz"),
                Piece("de-en/train.tags.de-en.de", "de-en/train.tags.de-en.en", "ted.zip", "tagged"),
            ),
            "valid": (Piece("dev/dev-src.de.sgm", "dev/dev-ref.en.sgm", "one.tgz", "segments"),),
            "test": (Piece("test.de.gz", "test.en.gz"),),
        },
    )
    return Corpus("small", "A small corpus", "de", "en", (layout,), "", "")


def texts(files: downloads.CorpusFiles) -> dict[str, tuple[str, str]]:
    return {split: (source.read_text("utf-8"), target.read_text("utf-8")) for split, (source, target) in files.files.items()}


EXPECTED = {
    "train": ("eins\nzwei\ndrei\n", "one\ntwo\nthree\n"),
    "valid": ("Prüfung & more\nPrüfung two lines\n", "check & more\ncheck two lines\n"),
    "test": ("vier\n", "four\n"),
}
