"""A web server on localhost, and a small dataset on it."""

import gzip
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from entformer.data import downloads
from entformer.data.datasets import DatasetInfo, Download, Layout, Part


@dataclass
class Web:
    """What the test server holds and which requests it received."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)  # bytes of the next bodies, then the connection ends
    with_length: bool = True  # whether Content-Length is sent
    ranges: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range header


def serve() -> Iterator[Web]:
    """Serves until the generator is finished."""
    state = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested = self.headers.get("Range")
            state.requests.append((self.path, requested))
            body = state.files.get(self.path.lstrip("/"))
            if body is None:
                self.send_error(404)
                return
            start = int(requested.removeprefix("bytes=").rstrip("-")) if requested and state.ranges else 0
            if start >= len(body):
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if state.with_length:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            self.wfile.write(body[start:][: state.cut_after.pop(0) if state.cut_after else None])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


SGM = (
    '<srcset setid="x"><doc>\n<p>\n<seg id="1"> {0} &amp; more </seg>\n<seg id="2">{0} two\nlines</seg>\n</p></doc></srcset>\n'
)


def tar(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in entries.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zipped(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return buffer.getvalue()


FILES = {
    "one.tgz": tar(
        {
            "./training/news.de-en.de": b"eins\nzwei\n",
            "./training/news.de-en.en": b"one\ntwo\n",
            "dev/dev-src.de.sgm": SGM.format("Prüfung").encode(),
            "dev/dev-ref.en.sgm": SGM.format("check").encode(),
        }
    ),
    "ted.zip": zipped(
        {
            "de-en/train.tags.de-en.de": b"<url>http</url>\n<title>Titel</title>\n drei \n<reviewer></reviewer>\n",
            "de-en/train.tags.de-en.en": b"<url>http</url>\n<title>title</title>\n three \n",
        }
    ),
    "test.de.gz": gzip.compress(b"vier\n"),
    "test.en.gz": gzip.compress(b"four\n"),
}


def small_dataset(web: Web) -> DatasetInfo:
    """Returns a dataset with everything the real ones have: .tgz, .zip, .gz, SGML, tags, a split of two parts."""
    web.files.update(FILES)
    layout = Layout(
        "raw",
        tuple(Download(f"{web.url}/{file}") for file in FILES),
        {
            "train": (
                Part("training/news.de-en.de", "training/news.de-en.en", "one.tgz"),
                Part("de-en/train.tags.de-en.de", "de-en/train.tags.de-en.en", "ted.zip", "tagged"),
            ),
            "valid": (Part("dev/dev-src.de.sgm", "dev/dev-ref.en.sgm", "one.tgz", "segments"),),
            "test": (Part("test.de.gz", "test.en.gz"),),
        },
    )
    return DatasetInfo("small", "de", "en", (layout,))


def texts(files: downloads.CorpusFiles) -> dict[str, tuple[str, str]]:
    return {split: (source.read_text("utf-8"), target.read_text("utf-8")) for split, (source, target) in files.files.items()}


EXPECTED = {
    "train": ("eins\nzwei\ndrei\n", "one\ntwo\nthree\n"),
    "valid": ("Prüfung & more\nPrüfung two lines\n", "check & more\ncheck two lines\n"),
    "test": ("vier\n", "four\n"),
}
