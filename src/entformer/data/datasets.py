"""The corpora known by name. In: nothing. Out: for each, where its files are, how they make up the splits, how they are used.

A corpus has one or more layouts (Multi30k: cased "raw" and tokenized "tok"), the first being the one to download by default.
A layout lists downloads, and for each split the pieces that are joined to make it. Checksums are given where they are known;
the others are recorded at the first download, once the file has been seen to be the corpus (`downloads.py`). Those of WMT
training data are as TensorFlow Datasets publishes them.

The paper (Correia et al. 2019) trained on the last four: joint BPE of 32k merges; it reports tokenized BLEU and says
nothing else of its preprocessing, nor which test sets; ours are the usual ones and are named here.
"""

from dataclasses import dataclass, field

from entformer.errors import ArgumentError

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Download:
    """One file on the network."""

    file: str  # its name in the cache and in a mirror
    url: str
    sha256: str | None = None  # None: not published; recorded at the first download and checked from then on


@dataclass(frozen=True)
class Piece:
    """A part of a split: two files of equally many lines inside one download (or two downloads, if they are no archives)."""

    source: str
    target: str
    archive: str | None = None  # the download that holds both; None: they are downloads themselves
    markup: str = "none"  # "none"; "segments" (SGML or XML: the text of <seg>); "tagged" (IWSLT: lines that open with < go)


@dataclass(frozen=True)
class Layout:
    name: str
    downloads: tuple[Download, ...]
    splits: dict[str, tuple[Piece, ...]]
    tokenized: bool = False
    lowercase: bool = False


@dataclass(frozen=True)
class Corpus:
    name: str
    title: str
    source_language: str
    target_language: str
    layouts: tuple[Layout, ...]
    preprocessing: str  # what to do with the text, in words
    terms: str  # what its owners say of its use
    vocab_size: int = 32000
    pairs: dict[str, int] = field(default_factory=dict)  # sentence pairs of a split, where they are known


def corpus(name: str) -> Corpus:
    """The corpus of this name."""
    if name not in CORPORA:
        raise ArgumentError(f"There is no corpus {name!r}; known are builtin (needs no download), {', '.join(CORPORA)}.")
    return CORPORA[name]


_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1"
_MULTI30K_SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
_MULTI30K_RAW = {  # of the files as they are in the repository
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
}
_MULTI30K_TOK = {
    "train.lc.norm.tok.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
    "train.lc.norm.tok.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    "val.lc.norm.tok.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
    "val.lc.norm.tok.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    "test_2016_flickr.lc.norm.tok.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
    "test_2016_flickr.lc.norm.tok.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
}
_STATMT16 = "https://data.statmt.org/wmt16/translation-task"
_TED = [f"tst{year}" for year in range(2010, 2016)]


def _ted(talks: str) -> Piece:
    stem = f"IWSLT17.TED.{talks}.de-en"
    return Piece(f"de-en/{stem}.de.xml", f"de-en/{stem}.en.xml", "de-en.zip", "segments")


def _kyoto(stem: str) -> tuple[Piece, ...]:
    path = f"kftt-data-1.0/data/tok/kyoto-{stem}"
    return (Piece(f"{path}.ja", f"{path}.en", "kftt-data-1.0.tar.gz"),)


def _sgm(stem: str, source: str, target: str, archive: str) -> tuple[Piece, ...]:
    return (Piece(f"{stem}-src.{source}.sgm", f"{stem}-ref.{target}.sgm", archive, "segments"),)


CORPORA: dict[str, Corpus] = {
    entry.name: entry
    for entry in (
        Corpus(
            name="multi30k",
            title="Multi30k task 1, English to German image captions, test2016",
            source_language="en",
            target_language="de",
            layouts=(
                Layout(
                    "raw",
                    tuple(Download(file, f"{_MULTI30K}/raw/{file}", digest) for file, digest in _MULTI30K_RAW.items()),
                    {split: (Piece(f"{stem}.en.gz", f"{stem}.de.gz"),) for split, stem in _MULTI30K_SPLITS.items()},
                ),
                Layout(
                    "tok",
                    tuple(Download(file, f"{_MULTI30K}/tok/{file}", digest) for file, digest in _MULTI30K_TOK.items()),
                    {
                        split: (Piece(f"{stem}.lc.norm.tok.en", f"{stem}.lc.norm.tok.de"),)
                        for split, stem in _MULTI30K_SPLITS.items()
                    },
                    tokenized=True,
                    lowercase=True,
                ),
            ),
            preprocessing="Joint BPE of 10k. The published figures use the layout tok: lower-cased, normalized, Moses tokens.",
            terms="Public repository multi30k/dataset; its README limits the images to non-commercial research and education.",
            vocab_size=10000,
            pairs={"train": 29000, "valid": 1014, "test": 1000},
        ),
        Corpus(
            name="iwslt17-de-en",
            title="IWSLT 2017 TED talks, German to English, valid dev2010, test tst2010 to tst2015",
            source_language="de",
            target_language="en",
            layouts=(
                Layout(
                    "raw",
                    (
                        Download(
                            "de-en.zip",
                            "https://huggingface.co/datasets/IWSLT/iwslt2017/resolve/main/data/2017-01-trnted/texts/de/en/de-en.zip",
                        ),
                    ),
                    {
                        "train": (Piece("de-en/train.tags.de-en.de", "de-en/train.tags.de-en.en", "de-en.zip", "tagged"),),
                        "valid": (_ted("dev2010"),),
                        "test": tuple(_ted(talks) for talks in _TED),
                    },
                ),
            ),
            preprocessing="Lines of tags are dropped, the text of <seg> is kept; joint BPE of 32k (paper: 200K pairs).",
            terms="CC BY-NC-ND 4.0, as the TED talks.",
            pairs={"train": 206112, "valid": 888, "test": 8079},
        ),
        Corpus(
            name="kftt-ja-en",
            title="Kyoto Free Translation Task, Japanese to English",
            source_language="ja",
            target_language="en",
            layouts=(
                Layout(
                    "tok",
                    (Download("kftt-data-1.0.tar.gz", "https://www.phontron.com/kftt/download/kftt-data-1.0.tar.gz"),),
                    {"train": _kyoto("train.cln"), "valid": _kyoto("dev"), "test": _kyoto("test")},
                    tokenized=True,
                ),
            ),
            preprocessing="The task's own tokens and cleaned training set; joint BPE of 32k (paper: 300K pairs).",
            terms="CC BY-SA 3.0.",
        ),
        Corpus(
            name="wmt16-ro-en",
            title="WMT 2016 Romanian to English: Europarl v8 and SETIMES2, valid newsdev2016, test newstest2016",
            source_language="ro",
            target_language="en",
            layouts=(
                Layout(
                    "raw",
                    (
                        Download(
                            "training-parallel-ep-v8.tgz",
                            f"{_STATMT16}/training-parallel-ep-v8.tgz",
                            "8917bd3bef3bc894c8519ca1f8a4c7c330aad08a1263655a9d99ee13d532e3c7",
                        ),
                        Download("en-ro.txt.zip", "https://object.pouta.csc.fi/OPUS-SETIMES/v2/moses/en-ro.txt.zip"),
                        Download("dev-romanian-updated.tgz", f"{_STATMT16}/dev-romanian-updated.tgz"),
                        Download("test.tgz", f"{_STATMT16}/test.tgz"),
                    ),
                    {
                        "train": (
                            Piece(
                                "training-parallel-ep-v8/europarl-v8.ro-en.ro",
                                "training-parallel-ep-v8/europarl-v8.ro-en.en",
                                "training-parallel-ep-v8.tgz",
                            ),
                            Piece("SETIMES.en-ro.ro", "SETIMES.en-ro.en", "en-ro.txt.zip"),
                        ),
                        "valid": _sgm("dev/newsdev2016-roen", "ro", "en", "dev-romanian-updated.tgz"),
                        "test": _sgm("test/newstest2016-roen", "ro", "en", "test.tgz"),
                    },
                ),
            ),
            preprocessing="Cased text; joint BPE of 32k (paper: 600K pairs).",
            terms="Free for research; see the WMT 2016 and OPUS pages.",
            pairs={"valid": 1999, "test": 1999},
        ),
        Corpus(
            name="wmt14-en-de",
            title="WMT 2014 English to German: Europarl, Common Crawl, News Commentary; valid newstest2013, test newstest2014",
            source_language="en",
            target_language="de",
            layouts=(
                Layout(
                    "raw",
                    (
                        Download(
                            "training-parallel-europarl-v7.tgz",
                            "https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
                            "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
                        ),
                        Download(
                            "training-parallel-commoncrawl.tgz",
                            "https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
                            "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
                        ),
                        Download(
                            "training-parallel-nc-v9.tgz",
                            "https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
                            "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
                        ),
                        Download("dev.tgz", "https://www.statmt.org/wmt14/dev.tgz"),
                        Download("test-full.tgz", "https://www.statmt.org/wmt14/test-full.tgz"),
                    ),
                    {
                        "train": tuple(
                            Piece(f"{stem}.de-en.en", f"{stem}.de-en.de", archive)
                            for stem, archive in (
                                ("training/europarl-v7", "training-parallel-europarl-v7.tgz"),
                                ("commoncrawl", "training-parallel-commoncrawl.tgz"),
                                ("training/news-commentary-v9", "training-parallel-nc-v9.tgz"),
                            )
                        ),
                        "valid": _sgm("dev/newstest2013", "en", "de", "dev.tgz"),
                        "test": _sgm("test-full/newstest2014-deen", "en", "de", "test-full.tgz"),
                    },
                ),
            ),
            preprocessing="Cased text; joint BPE of 32k (paper: 4.5M pairs).",
            terms="Free for research; see the WMT 2014 page.",
            pairs={"valid": 3000, "test": 3003},
        ),
    )
}
