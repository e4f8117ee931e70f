"""Downloads against a server on this machine: resume, checksums, no network, mirrors, local copies, hostile archives."""

import gzip
import hashlib
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from entformer.data.archives import members
from entformer.data.datasets import Corpus
from entformer.data.downloads import fetch
from entformer.data.http_download import download
from entformer.errors import ArgumentError, DataError

from .web import EXPECTED, FILES, Web, dead_url, tar, texts, zipped

BODY = bytes(range(256)) * 4000
DIGEST = hashlib.sha256(BODY).hexdigest()


# ---- one file ------------------------------------------------------------------------------------------------------------


def test_a_file_arrives_whole_with_progress_and_nothing_beside_it(web: Web, tmp_path: Path) -> None:
    web.files["a.bin"] = BODY
    seen: list[tuple[str, int, int | None]] = []
    found = download(f"{web.url}/a.bin", tmp_path / "a.bin", sha256=DIGEST, progress=lambda *what: seen.append(what))
    assert found == DIGEST
    assert (tmp_path / "a.bin").read_bytes() == BODY
    assert seen[-1] == ("a.bin", len(BODY), len(BODY))
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_cut_connection_is_taken_up_where_it_stopped(web: Web, tmp_path: Path) -> None:
    web.files["a.bin"], web.cut_after = BODY, 300_000
    assert download(f"{web.url}/a.bin", tmp_path / "a.bin") == DIGEST
    assert web.asked == [("/a.bin", None), ("/a.bin", "bytes=262144-")]  # of what had come, whole chunks of 65,536 bytes


def test_the_next_process_goes_on_with_the_part_of_the_last(web: Web, tmp_path: Path) -> None:
    web.files["a.bin"] = BODY
    (tmp_path / "a.bin.part").write_bytes(BODY[:1000])
    assert download(f"{web.url}/a.bin", tmp_path / "a.bin", sha256=DIGEST) == DIGEST
    assert web.asked == [("/a.bin", "bytes=1000-")]


def test_a_part_that_is_already_whole_is_not_fetched_again(web: Web, tmp_path: Path) -> None:
    web.files["a.bin"] = BODY
    (tmp_path / "a.bin.part").write_bytes(BODY)
    assert download(f"{web.url}/a.bin", tmp_path / "a.bin", sha256=DIGEST) == DIGEST


def test_a_file_that_changed_on_the_server_starts_afresh(web: Web, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(b"old" * 1000)
    note = {"url": f"{web.url}/a.bin", "validator": '"old"'}
    (tmp_path / "a.bin.part.json").write_text(json.dumps(note))
    web.files["a.bin"] = BODY
    assert download(f"{web.url}/a.bin", tmp_path / "a.bin") == DIGEST
    assert (tmp_path / "a.bin").read_bytes() == BODY


def test_a_part_of_unknown_origin_is_not_joined_to_a_file_without_checksum(web: Web, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(b"somebody else's")
    web.files["a.bin"] = BODY
    assert download(f"{web.url}/a.bin", tmp_path / "a.bin") == DIGEST


def test_a_server_without_ranges_sends_everything_again(web: Web, tmp_path: Path) -> None:
    web.files["a.bin"], web.cut_after, web.ranges = BODY, 5000, False
    assert download(f"{web.url}/a.bin", tmp_path / "a.bin") == DIGEST


def test_a_part_longer_than_the_file_starts_afresh(web: Web, tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(BODY + b"more")
    web.files["a.bin"] = BODY
    assert download(f"{web.url}/a.bin", tmp_path / "a.bin", sha256=DIGEST) == DIGEST


def test_a_wrong_checksum_leaves_no_file_and_no_part(web: Web, tmp_path: Path) -> None:
    web.files["a.bin"] = BODY[:-1] + b"!"
    with pytest.raises(DataError, match=f"damaged or not the file we know: its sha256 is [0-9a-f]{{64}}, not {DIGEST}"):
        download(f"{web.url}/a.bin", tmp_path / "a.bin", sha256=DIGEST)
    assert os.listdir(tmp_path) == []


def test_no_network_is_one_sentence_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"^http://127.*/a\.bin cannot be reached: .*; give a local copy with --from DIR or .*\.$"
    ):
        download(f"{dead_url()}/a.bin", tmp_path / "a.bin")


def test_no_network_keeps_what_has_come(tmp_path: Path) -> None:
    (tmp_path / "a.bin.part").write_bytes(BODY[:1000])
    with pytest.raises(DataError, match="1,000 bytes are kept"):
        download(f"{dead_url()}/a.bin", tmp_path / "a.bin", sha256=DIGEST)
    assert (tmp_path / "a.bin.part").stat().st_size == 1000


def test_a_missing_page_is_named(web: Web, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"/a\.bin answered 404 Not Found; give a local copy with --from DIR"):
        download(f"{web.url}/a.bin", tmp_path / "a.bin")


# ---- a corpus ------------------------------------------------------------------------------------------------------------


def test_a_corpus_comes_from_the_network_once(web: Web, known: Corpus, tmp_path: Path) -> None:
    files = fetch("small", tmp_path)
    assert texts(files) == EXPECTED
    assert (files.source_language, files.target_language, files.layout) == ("de", "en", "raw")
    requests = len(web.asked)
    assert requests == len(FILES)
    assert texts(fetch("small", tmp_path)) == EXPECTED
    assert len(web.asked) == requests  # the second time needs no network
    assert not list(tmp_path.rglob("*.part"))


def test_unpublished_checksums_are_recorded_and_then_checked(web: Web, known: Corpus, tmp_path: Path) -> None:
    fetch("small", tmp_path)
    record = json.loads((tmp_path / "small/checksums.json").read_text())
    assert record == {file: hashlib.sha256(body).hexdigest() for file, body in FILES.items()}
    (tmp_path / "small/raw/test.de").unlink()
    (tmp_path / "small/downloads/test.de.gz").unlink()
    web.files["test.de.gz"] = gzip.compress(b"other\n")
    with pytest.raises(DataError, match=r"test\.de\.gz .* is damaged or not the file we know.*recorded at the first download"):
        fetch("small", tmp_path)


def test_a_mirror_serves_the_same_files(web: Web, known: Corpus, tmp_path: Path) -> None:
    for file in FILES:
        web.files[f"mirror/{file}"] = web.files.pop(file)
    assert texts(fetch("small", tmp_path, source=f"{web.url}/mirror/")) == EXPECTED


def test_a_folder_with_the_downloads_needs_no_network(web: Web, known: Corpus, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file, body in FILES.items():
        (copy / file).write_bytes(body)
    assert texts(fetch("small", tmp_path / "cache", source=str(copy))) == EXPECTED
    assert web.asked == []


def test_a_folder_with_unpacked_files_works_and_follows_changes(known: Corpus, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for file in ("one.tgz", "ted.zip"):
        (tmp_path / file).write_bytes(FILES[file])
        names = [
            name
            for pieces in known.layouts[0].splits.values()
            for piece in pieces
            if piece.archive == file
            for name in (piece.source, piece.target)
        ]
        for name, stream in members(tmp_path / file, names):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(stream.read())
    (copy / "test.de").write_text("vier\n")
    (copy / "test.en.gz").write_bytes(FILES["test.en.gz"])
    assert texts(fetch("small", tmp_path / "cache", source=str(copy))) == EXPECTED
    (copy / "test.de").write_text("fünf\n", encoding="utf-8")
    assert texts(fetch("small", tmp_path / "cache", source=str(copy)))["test"] == ("fünf\n", "four\n")


def test_a_folder_without_the_corpus_says_what_is_missing(known: Corpus, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not hold small: raw lacks one\.tgz and 3 more\."):
        fetch("small", tmp_path / "cache", source=str(tmp_path))
    with pytest.raises(DataError, match="is not a folder; give a folder that holds small, or a URL"):
        fetch("small", tmp_path / "cache", source=str(tmp_path / "nowhere"))


def test_no_network_names_the_way_out(known: Corpus, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be reached.*give a local copy with --from DIR"):
        fetch("small", tmp_path, source=dead_url())


def test_a_damaged_archive_is_named(web: Web, known: Corpus, tmp_path: Path) -> None:
    web.files["one.tgz"] = FILES["one.tgz"][:-200]
    with pytest.raises(DataError, match=r"one\.tgz cannot be read as an archive"):
        fetch("small", tmp_path)
    assert not (tmp_path / "small/raw").exists()


def test_an_unknown_layout_gets_the_list(known: Corpus, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="has no layout 'tok'; it has raw"):
        fetch("small", tmp_path, layout="tok")


def test_a_cache_that_cannot_be_written_is_named(known: Corpus, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cache folder .* cannot be written"):
        fetch("small", tmp_path / "file")


# ---- archives ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [tar, zipped])
def test_a_member_that_climbs_out_is_never_taken(pack: Callable[[dict[str, str]], bytes], tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(pack({"../../x.en": "bad", "a/../../x.en": "bad", "/x.de": "fine"}))
    with pytest.raises(DataError, match=r"has no file x\.en"):
        list(members(archive, ["x.en", "x.de"]))
    assert os.listdir(tmp_path) == ["archive"]


def test_a_link_in_an_archive_is_not_followed(tmp_path: Path) -> None:
    archive = tmp_path / "archive.tgz"
    with tarfile.open(archive, "w:gz") as opened:
        link = tarfile.TarInfo("x.en")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        opened.addfile(link)
    with pytest.raises(DataError, match=r"has no file x\.en"):
        list(members(archive, ["x.en"]))


# ---- Multi30k on this machine --------------------------------------------------------------------------------------------

DATA = Path(os.environ.get("ENTFORMER_DATA", Path(__file__).parents[4] / "shared/data")) / "multi30k"
needs_multi30k = pytest.mark.skipif(not DATA.is_dir(), reason="no local copy of Multi30k (set ENTFORMER_DATA)")


@needs_multi30k
@pytest.mark.parametrize(
    ("folder", "layout", "expected"), [("raw", None, "raw"), ("tok", None, "tok"), ("", None, "raw"), ("", "tok", "tok")]
)
def test_multi30k_is_found_in_both_layouts(folder: str, layout: str | None, expected: str, tmp_path: Path) -> None:
    files = fetch("multi30k", tmp_path, source=str(DATA / folder), layout=layout)
    assert (files.layout, files.tokenized, files.lowercase) == (expected, expected == "tok", expected == "tok")
    for split, count in {"train": 29000, "valid": 1014, "test": 1000}.items():
        for side in files.files[split]:
            with gzip.open(side) as lines:
                assert sum(1 for _ in lines) == count


@needs_multi30k
def test_the_local_copy_is_the_published_one() -> None:
    from entformer.data.datasets import corpus

    for layout in corpus("multi30k").layouts:
        for entry in layout.downloads:
            path = DATA / layout.name / entry.file
            body = path.read_bytes() if path.exists() else gzip.decompress(path.with_name(path.name + ".gz").read_bytes())
            assert hashlib.sha256(body).hexdigest() == entry.sha256
