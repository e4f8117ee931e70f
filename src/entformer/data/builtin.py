"""The built-in English-German corpus: made by a small grammar, so it needs no network and is nobody's property.

In: a seed and how many pairs of each split. Out: (English, German) pairs of natural cased text. One English sentence has
exactly one German translation, so a model can learn the task to the full. Which split a sentence belongs to is read from a
hash of its English text alone: train, valid and test are disjoint whatever the seed and the sizes.
"""

from hashlib import blake2b

from entformer.data.builtin_english import english
from entformer.data.builtin_german import german
from entformer.data.builtin_sampler import Sampler
from entformer.errors import ArgumentError

SOURCE_LANGUAGE, TARGET_LANGUAGE = "en", "de"
SPLITS = ("train", "valid", "test")
WORDS = (5, 16)  # in an English sentence, at least and at most; in a German one at most
_MAY_REPEAT = frozenset({
    "the", "are", "was", "were", "who", "that", "this", "these", "his", "her", "its", "their", "has", "have", "does", "did",
    "want", "wants", "into", "with", "for", "some", "many", "two", "three", "four", "five", "six", "not", "being", "looking",
})  # fmt: skip
_PATIENCE = 400  # draws per pair asked for; a split that is not full by then never fills


def builtin_corpus(seed: int = 1, train: int = 9000, valid: int = 500, test: int = 500) -> dict[str, list[tuple[str, str]]]:
    """Pairs (source English, target German) of each split, all different, the same for the same arguments."""
    wanted = {"train": train, "valid": valid, "test": test}
    for split, count in wanted.items():
        if count < 0:
            raise ArgumentError(f"builtin_corpus: {split} = {count} pairs cannot be made; give 0 or more.")
    pairs: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    seen: set[str] = set()
    sampler = Sampler(seed)
    open_splits = {split for split in SPLITS if wanted[split]}
    for _ in range(1000 + _PATIENCE * sum(wanted.values())):
        if not open_splits:
            return pairs
        meaning = sampler.sentence()
        source = english(meaning)
        if not WORDS[0] <= source.count(" ") + 1 <= WORDS[1] or _repeats(source):
            continue
        split = split_of(source)
        if split not in open_splits or source in seen:
            continue
        seen.add(source)
        target = german(meaning)
        if target.count(" ") >= WORDS[1]:
            continue
        pairs[split].append((source, target))
        if len(pairs[split]) == wanted[split]:
            open_splits.remove(split)
    missing = ", ".join(f"{split} {len(pairs[split])} of {wanted[split]}" for split in SPLITS if split in open_splits)
    raise ArgumentError(f"builtin_corpus: the grammar does not give that many different sentences ({missing}); ask for fewer.")


def _repeats(source: str) -> bool:
    """Whether a word of meaning comes twice: "the man is helping the man" is grammar, but nobody says it."""
    content = [word for word in source.rstrip(".?").lower().split(" ") if len(word) > 2 and word not in _MAY_REPEAT]
    return len(set(content)) < len(content)


def split_of(source: str) -> str:
    """The split an English sentence belongs to, whoever draws it: 5% valid, 5% test, the rest train."""
    share = int.from_bytes(blake2b(source.encode(), digest_size=4).digest(), "big") / 2**32
    return "test" if share < 0.05 else "valid" if share < 0.10 else "train"
