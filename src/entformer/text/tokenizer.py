"""The joint subword vocabulary: byte-pair encoding by sentencepiece. In: lines of text. Out: ids, and text from ids.

    decode(encode(line)) == line     for every line without a newline whose words are parted by single spaces

Text is never changed but for runs of spaces, which become one: no NFKC, no lower-casing. What the vocabulary does not know
is spelled in bytes, so there is no unknown word. Everything a user writes is text, "<s>" and "▁" too; the ids of PAD, UNK,
BOS and EOS never come out of `encode`.
"""

import hashlib
import io
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece

from entformer.errors import ArgumentError, DataError
from entformer.models import special_tokens

PAD, UNK, BOS, EOS = special_tokens.PAD, special_tokens.UNK, special_tokens.BOS, special_tokens.EOS

CONTROLS = 4  # ids below this are PAD, UNK, BOS, EOS
SMALLEST = CONTROLS + 256 + 16  # the four, one piece for every byte, and room for a few characters
SPACE = "▁"  # sentencepiece's mark for "a word starts here"
RICH_SCRIPT = 0.25  # above this share of the vocabulary for single characters, the rarest are left to bytes
ALPHABET = 256  # characters that make up nearly all of a text written with an alphabet, at most
RICH_COVERAGE = 0.9995  # of the running text, then; what sentencepiece's authors advise for Chinese and Japanese
NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # Unicode promises that no text has a use for these


class SubwordTokenizer:
    """A trained vocabulary. Holds the model as bytes, so that it travels inside a run folder."""

    def __init__(self, model: bytes, *, note: str | None = None) -> None:
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except Exception as problem:  # sentencepiece raises RuntimeError or TypeError, with its own source lines in the text
            raise DataError("this is not a sentencepiece model; it is damaged or another kind of file.") from problem
        processor = self._processor
        controls = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        if controls != (PAD, UNK, BOS, EOS):
            raise DataError(
                f"this sentencepiece model has the ids {controls} for padding, unknown, start and end, and entformer needs "
                f"{(PAD, UNK, BOS, EOS)}; train one with `entformer prep` or with pad_id=0, unk_id=1, bos_id=2, eos_id=3."
            )
        self._byte_ids = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        if UNK in self._byte_ids:
            raise DataError("this sentencepiece model has no byte pieces; train it with byte_fallback=True.")
        self.model = model
        self.note = note  # what training has to say: a smaller vocabulary than was asked for, or None
        self.size: int = processor.get_piece_size()
        self.fingerprint = hashlib.sha256(model).hexdigest()[:16]
        self._pieces = [processor.id_to_piece(i) for i in range(self.size)]
        # Characters the vocabulary cannot hold stand in for "▁" while sentencepiece splits a line.
        known = set("".join(self._pieces))
        self._stand_ins = [character for character in NONCHARACTERS if character not in known]
        self._merges: dict[str, tuple[float, int]] | None = None

    # ---- making and keeping ----------------------------------------------------------------------------------------

    @classmethod
    def train(
        cls, lines: Iterable[str], *, vocab_size: int = 32000, sample: int = 5_000_000, seed: int = 1, threads: int = 2
    ) -> "SubwordTokenizer":
        """Learn the vocabulary from `lines`, from a random `sample` of them when there are more.

        A text that cannot fill `vocab_size` gives a smaller vocabulary, and `note` says so.

        Raises:
            ArgumentError: `vocab_size` cannot hold the special ids, the 256 bytes and the characters of the text.
        """
        if vocab_size < SMALLEST:
            raise ArgumentError(f"vocab_size is {vocab_size}, and the smallest is {SMALLEST}: 256 bytes come first.")
        if sample < 1:
            raise ArgumentError(f"sample is {sample}; give the number of lines to learn the vocabulary from, 1 or more.")
        kept = [line for line in _reservoir(map(_trainable, lines), sample, random.Random(seed)) if line]
        if not kept:
            raise DataError("there is no text to learn a vocabulary from: every line is empty.")
        kept, spelled = _without_rare_characters(kept, vocab_size)
        characters = len(set().union(*kept) - {" "}) + 1  # and the mark of a space
        smallest = CONTROLS + 256 + characters
        if vocab_size < smallest:
            raise ArgumentError(
                f"vocab_size is {vocab_size}, and this text needs at least {smallest}: {CONTROLS} special ids, 256 bytes and "
                f"its {characters} characters."
            )
        made = cls(_train_sentencepiece(kept, vocab_size, threads))
        if spelled > 1 - RICH_COVERAGE:
            made.note = f"{100 * spelled:.1f}% of the text is characters spelled in bytes; a larger vocabulary holds more."
        if made.size < vocab_size:
            made.note = f"the text supports {made.size} subwords, fewer than the {vocab_size} asked for; all of them are taken."
        return made

    @classmethod
    def load(cls, path: Path) -> "SubwordTokenizer":
        """Read a vocabulary from a file written by `save`."""
        try:
            data = Path(path).read_bytes()
        except OSError as problem:
            raise DataError(f"{path}: the vocabulary cannot be read ({problem.strerror}).") from problem
        try:
            return cls(data)
        except DataError as problem:
            raise DataError(f"{path}: {problem}") from problem

    @classmethod
    def from_bytes(cls, data: bytes) -> "SubwordTokenizer":
        """A vocabulary from the bytes of its model."""
        return cls(data)

    def save(self, path: Path) -> None:
        """Write the model, whole or not at all."""
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
        with temporary.open("wb") as file:
            file.write(self.model)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    # ---- text to ids -----------------------------------------------------------------------------------------------

    def encode(self, line: str, *, dropout: float = 0.0, seed: int | None = None) -> list[int]:
        """Ids of a line, without BOS and EOS.

        `dropout` is BPE-dropout (Provilkov et al. 2020): the probability that a merge is left out. Equal `seed`, equal split.
        """
        if not 0 <= dropout <= 1:
            raise ArgumentError(f"dropout is {dropout}; it is a probability, 0 to 1.")
        if dropout > 0:
            return self._encode_with_dropout(_valid(line), dropout, random.Random(seed))
        if SPACE in line:
            return self._encode_with_marks(_valid(line))
        ids: list[int] = self._processor.encode(_valid(line))
        return ids

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """Ids of many lines, quicker than one by one."""
        valid = [_valid(line) for line in lines]
        ids: list[list[int]] = self._processor.encode(valid) if valid else []
        for i, line in enumerate(valid):
            if SPACE in line:
                ids[i] = self._encode_with_marks(line)
        return ids

    def _encode_with_marks(self, line: str) -> list[int]:
        """A line with "▁" in it: the mark is spelled in bytes, since sentencepiece would take it for a space."""
        stand_in = next((character for character in self._stand_ins if character not in line), None)
        if stand_in is None:
            raise DataError("a line has all 32 Unicode noncharacters in it; it is not text.")
        ids = self._processor.encode(line.replace(SPACE, stand_in))
        spelled = [self._byte_ids[byte] for byte in stand_in.encode()]
        wanted = [self._byte_ids[byte] for byte in SPACE.encode()]
        out: list[int] = []
        for i in ids:
            out.append(int(i))
            if out[-3:] == spelled:
                out[-3:] = wanted
        return out

    def _encode_with_dropout(self, line: str, dropout: float, rng: random.Random) -> list[int]:
        """Merge adjacent pieces, best score first, each possible merge of each round left out with probability `dropout`."""
        if self._merges is None:
            scores = ((piece, self._processor.get_score(i), i) for i, piece in enumerate(self._pieces))
            special = {*range(CONTROLS), *self._byte_ids}
            self._merges = {piece: (score, i) for piece, score, i in scores if i not in special}
        merges, out = self._merges, list[int]()
        for word in line.split(" "):
            if not word:
                continue
            pieces = [SPACE, *(character if character != SPACE else "\n▁" for character in word)]  # "\n▁" is in no vocabulary
            while True:
                best, where = -float("inf"), -1
                for i in range(len(pieces) - 1):
                    found = merges.get(pieces[i] + pieces[i + 1])
                    if found is not None and found[0] > best and (dropout == 0 or rng.random() >= dropout):
                        best, where = found[0], i
                if where < 0:
                    break
                pieces[where : where + 2] = [pieces[where] + pieces[where + 1]]
            for piece in pieces:
                if piece in merges:
                    out.append(merges[piece][1])
                else:
                    out.extend(self._byte_ids[byte] for byte in piece.removeprefix("\n" if piece == "\n▁" else "").encode())
        return out

    # ---- ids to text -----------------------------------------------------------------------------------------------

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, always one line: PAD, UNK, BOS and EOS are left out, a newline spelled in bytes becomes a space."""
        words = [int(i) for i in ids if int(i) >= CONTROLS]
        self._check(words)
        text: str = self._processor.decode(words)
        return text.replace("\n", " ")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each id as people see it: "▁man", "s", "<0xE2>", "</s>"."""
        self._check(ids)
        return [self._pieces[int(i)] for i in ids]

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """True where a new word begins. The first piece and every control id begin one too."""
        self._check(ids)
        starts = [int(i) < CONTROLS or self._pieces[int(i)].startswith(SPACE) for i in ids]
        return [start or position == 0 or int(ids[position - 1]) < CONTROLS for position, start in enumerate(starts)]

    def _check(self, ids: Sequence[int]) -> None:
        for i in ids:
            if not 0 <= int(i) < self.size:
                raise ArgumentError(f"id {int(i)} is not in this vocabulary, whose ids are 0 to {self.size - 1}.")


def _train_sentencepiece(lines: list[str], vocab_size: int, threads: int) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        hard_vocab_limit=False,  # take what the text supports
        character_coverage=1.0,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=True,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        num_threads=threads,
        minloglevel=2,
    )
    return model.getvalue()


def _without_rare_characters(lines: list[str], vocab_size: int) -> tuple[list[str], float]:
    """The lines without the characters that are left to bytes, and the share of the text that these are.

    A script of thousands of characters must not fill the vocabulary alone.
    """
    if len(set().union(*lines)) <= RICH_SCRIPT * vocab_size:
        return lines, 0.0
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    wanted = RICH_COVERAGE * counts.total()
    common: list[str] = []
    for character, count in counts.most_common():
        if wanted <= 0:
            break
        common.append(character)
        wanted -= count
    # The characters of an alphabet are all needed. A script of thousands gets half of what the bytes leave.
    kept = set(common if len(common) <= ALPHABET else common[: (vocab_size - CONTROLS - 256) // 2])
    rare = dict.fromkeys(map(ord, counts.keys() - kept), " ")
    spelled = sum(counts[character] for character in counts.keys() - kept) / counts.total()
    return [line.translate(rare) for line in lines], spelled


def _trainable(line: str) -> str:
    """A line as sentencepiece can learn from it: a NUL ends a string in C, and "▁" would pass for a space."""
    return _valid(line).replace("\0", " ").replace(SPACE, " ").strip()


def _valid(line: str) -> str:
    """Half a surrogate pair, as Python makes from undecodable bytes, is not Unicode text; it becomes U+FFFD."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return line.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return line


def _reservoir(lines: Iterator[str], size: int, rng: random.Random) -> list[str]:
    """A uniform sample of at most `size` lines, in one pass and without knowing how many there are (Vitter 1985)."""
    kept: list[str] = []
    for seen, line in enumerate(lines):
        if seen < size:
            kept.append(line)
        elif (place := int(rng.random() * (seen + 1))) < size:
            kept[place] = line
    return kept
