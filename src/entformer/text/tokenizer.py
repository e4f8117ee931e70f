"""Subword tokenizer for both languages: byte-pair encoding by sentencepiece.

    decode(encode(line)) == line     for every line without a newline whose words are separated by single spaces

Runs of spaces become one; the text is not changed otherwise (no NFKC, no lowercasing). Characters that are not in the
vocabulary are encoded as bytes, so there is no unknown word. "<s>" and "▁" in the input are text: `encode` never returns the
ids of PAD, UNK, BOS and EOS.
"""

import hashlib
import io
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import sentencepiece

from entformer.errors import ArgumentError, DataError
from entformer.files import write_bytes
from entformer.models import special_tokens

PAD, UNK, BOS, EOS = special_tokens.PAD, special_tokens.UNK, special_tokens.BOS, special_tokens.EOS
NUM_SPECIAL_TOKENS = 4  # ids below this are PAD, UNK, BOS, EOS
SMALLEST = NUM_SPECIAL_TOKENS + 256 + 16  # special ids, one piece per byte, and a few characters
SPACE = "▁"  # marks the start of a word in a sentencepiece
RICH_SCRIPT = 0.25  # above this fraction of single characters in the vocabulary, the rarest are encoded as bytes
ALPHABET = 256  # an alphabet has at most this many common characters
RICH_COVERAGE = 0.9995  # of the text; recommended by sentencepiece for Chinese and Japanese
NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # code points that Unicode reserves for internal use


class SubwordTokenizer:
    """A trained subword vocabulary.

    Args:
        model: Content of a sentencepiece model file.
        note: Remark of training about the size of the vocabulary.
    """

    def __init__(self, model: bytes, *, note: str | None = None) -> None:
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except Exception as err:  # sentencepiece raises RuntimeError or TypeError, with its own source lines in the text
            raise DataError("this is not a sentencepiece model, or it is damaged.") from err
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
        self._byte_values = {byte_id: byte for byte, byte_id in enumerate(self._byte_ids)}
        self.model = model
        self.note = note  # a remark of training, such as a smaller vocabulary than requested
        self.size: int = processor.get_piece_size()
        self.fingerprint = hashlib.sha256(model).hexdigest()[:16]
        self._pieces = [processor.id_to_piece(i) for i in range(self.size)]
        # Characters that are not in the vocabulary replace "▁" while sentencepiece splits a line.
        known = set("".join(self._pieces))
        self._stand_ins = [character for character in NONCHARACTERS if character not in known]

    # ---- training and storage ----------------------------------------------------------------------------------------

    @classmethod
    def train(
        cls, lines: Iterable[str], *, vocab_size: int = 32000, sample: int = 5_000_000, seed: int = 1, threads: int = 2
    ) -> "SubwordTokenizer":
        """Trains a vocabulary.

        Args:
            lines: Text of both languages.
            vocab_size: Number of subwords; fewer, with a `note`, if the text does not support as many.
            sample: Number of lines to train on, sampled at random if there are more.
            seed: Seed of the sample.
            threads: Threads of sentencepiece.

        Raises:
            ArgumentError: `vocab_size` cannot hold the special ids, the 256 bytes and the characters of the text.
        """
        if vocab_size < SMALLEST:
            raise ArgumentError(f"vocab_size must be at least {SMALLEST} (256 of it are bytes), got {vocab_size}.")
        if sample < 1:
            raise ArgumentError(f"sample must be at least 1, got {sample}.")
        kept = [line for line in _reservoir(map(_trainable, lines), sample, random.Random(seed)) if line]
        if not kept:
            raise DataError("the vocabulary cannot be learned: every line of the text is empty.")
        kept, spelled = _without_rare_characters(kept, vocab_size)
        characters = len(set().union(*kept) - {" "}) + 1  # and "▁"
        smallest = NUM_SPECIAL_TOKENS + 256 + characters
        if vocab_size < smallest:
            raise ArgumentError(
                f"vocab_size must be at least {smallest} for this text ({NUM_SPECIAL_TOKENS} special ids, 256 bytes, "
                f"{characters} characters), got {vocab_size}."
            )
        made = cls(_train_sentencepiece(kept, vocab_size, threads))
        if spelled > 1 - RICH_COVERAGE:
            made.note = f"{100 * spelled:.1f}% of the characters are encoded as bytes; a larger vocabulary covers more."
        if made.size < vocab_size:
            made.note = f"the text supports {made.size} subwords, fewer than the {vocab_size} requested."
        return made

    @classmethod
    def load(cls, path: Path) -> "SubwordTokenizer":
        """Loads a vocabulary from a file written by `save`."""
        try:
            data = Path(path).read_bytes()
        except OSError as err:
            raise DataError(f"{path}: the vocabulary cannot be read ({err.strerror}).") from err
        try:
            return cls(data)
        except DataError as err:
            raise DataError(f"{path}: {err}") from err

    def save(self, path: Path) -> None:
        """Writes the model to a file."""
        write_bytes(Path(path), self.model)

    # ---- text to ids -----------------------------------------------------------------------------------------------

    def encode(self, line: str) -> list[int]:
        """Returns the ids of a line, without BOS and EOS."""
        return self.encode_lines([line])[0]

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """Returns the ids of many lines, faster than one by one."""
        valid = [_valid(line) for line in lines]
        ids: list[list[int]] = self._processor.encode(valid) if valid else []
        for i, line in enumerate(valid):
            if SPACE in line:
                ids[i] = self._encode_with_marks(line)
        return ids

    def _encode_with_marks(self, line: str) -> list[int]:
        """Encodes a line with "▁", which is encoded as bytes because sentencepiece would read it as a space."""
        stand_in = next((character for character in self._stand_ins if character not in line), None)
        if stand_in is None:
            raise DataError("a line contains all 32 Unicode noncharacters; it is not text.")
        ids = self._processor.encode(line.replace(SPACE, stand_in))
        spelled = [self._byte_ids[byte] for byte in stand_in.encode()]
        wanted = [self._byte_ids[byte] for byte in SPACE.encode()]
        out: list[int] = []
        for i in ids:
            out.append(int(i))
            if out[-3:] == spelled:
                out[-3:] = wanted
        return out

    # ---- ids to text -----------------------------------------------------------------------------------------------

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids as one line: PAD, UNK, BOS and EOS are skipped, a newline becomes a space."""
        words = [int(i) for i in ids if int(i) >= NUM_SPECIAL_TOKENS]
        self._check(words)
        text: str = self._processor.decode(words)
        return text.replace("\n", " ")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the piece of each id: "▁man", "s", "<0xE2>", "</s>"."""
        self._check(ids)
        return [self._pieces[int(i)] for i in ids]

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """Returns True where a word starts; the first piece and special ids start one too."""
        self._check(ids)
        starts = [int(i) < NUM_SPECIAL_TOKENS or self._pieces[int(i)].startswith(SPACE) for i in ids]
        return [start or position == 0 or int(ids[position - 1]) < NUM_SPECIAL_TOKENS for position, start in enumerate(starts)]

    def spelled_characters(self, ids: Sequence[int]) -> list[str]:
        """Returns the characters that are not in the vocabulary and are encoded as bytes, each once, in order."""
        found: dict[str, None] = {}
        for is_byte, run in groupby(ids, self._byte_values.__contains__):
            if is_byte:
                found |= dict.fromkeys(bytes(self._byte_values[i] for i in run).decode("utf-8", "replace"))
        return list(found)

    def byte_id(self, byte: int) -> int:
        """Returns the id of a byte."""
        return int(self._byte_ids[byte])

    def _check(self, ids: Sequence[int]) -> None:
        for i in ids:
            if not 0 <= int(i) < self.size:
                raise ArgumentError(f"ids must be between 0 and {self.size - 1}, got {int(i)}.")


def _train_sentencepiece(lines: list[str], vocab_size: int, threads: int) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        hard_vocab_limit=False,  # fewer if the text does not support as many
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
    """Returns the lines without rare characters, which are encoded as bytes, and the fraction of the text they make up.

    Otherwise a script of thousands of characters would fill the vocabulary.
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
    # All characters of an alphabet are needed. A script of thousands gets half of the vocabulary beside the bytes.
    kept = set(common if len(common) <= ALPHABET else common[: (vocab_size - NUM_SPECIAL_TOKENS - 256) // 2])
    rare = dict.fromkeys(map(ord, counts.keys() - kept), " ")
    spelled = sum(counts[character] for character in counts.keys() - kept) / counts.total()
    return [line.translate(rare) for line in lines], spelled


def _trainable(line: str) -> str:
    """Replaces what sentencepiece cannot train on: NUL ends a string in C, and "▁" stands for a space."""
    return _valid(line).replace("\0", " ").replace(SPACE, " ").strip()


def _valid(line: str) -> str:
    """Replaces unpaired surrogates, which Python makes from undecodable bytes, by U+FFFD."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return line.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return line


def _reservoir(lines: Iterator[str], size: int, rng: random.Random) -> list[str]:
    """Returns a uniform sample of at most `size` lines in one pass (Vitter 1985)."""
    kept: list[str] = []
    for seen, line in enumerate(lines):
        if seen < size:
            kept.append(line)
        elif (index := int(rng.random() * (seen + 1))) < size:
            kept[index] = line
    return kept
