"""Names of queries and keys, from the tokens that a user gives."""

from collections.abc import Iterable
from typing import Any

from entformer.errors import ArgumentError

Names = tuple[str, ...]
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>")  # which the page names itself


def read_tokens(tokens: Any, argument: str) -> Names | None:
    """Returns tokens as strings; None if none were given."""
    if tokens is None:
        return None
    if isinstance(tokens, str | bytes):
        raise ArgumentError(
            f"{argument} must be a list with one string per token, got one {type(tokens).__name__}; split it first."
        )
    if hasattr(tokens, "tolist"):  # ids in an array or a tensor
        tokens = tokens.tolist()
    if not isinstance(tokens, Iterable):
        raise ArgumentError(f"{argument} must be a list with one string per token, got {type(tokens).__name__}.")
    names = tuple(tokens)
    wrong = next((token for token in names if not isinstance(token, str | int)), None)
    if wrong is not None:
        raise ArgumentError(
            f"{argument} must hold one string per token, got a {type(wrong).__name__} in it; give one sentence, not a batch."
        )
    return _pieces(tuple(map(str, names)))


def name_tokens(queries: int, keys: int, tokens: Names | None, key_tokens: Names | None) -> tuple[Names, Names]:
    """Returns the names of queries and keys. What has no name is named by its position.

    `tokens` name the keys too if there are as many. Where a model reads from a cache there are fewer queries than keys: the
    queries are then the last of the tokens.
    """
    if tokens is not None and key_tokens is None and len(tokens) == keys:
        key_tokens = tokens
    if tokens is not None and key_tokens is not None and len(tokens) == keys and tokens == key_tokens and queries < keys:
        tokens = tokens[keys - queries :]
    for names, count, argument, what in (
        (tokens, queries, "tokens", "queries"),
        (key_tokens, keys, "key_tokens", "keys"),
    ):
        if names is not None and len(names) != count:
            raise ArgumentError(f"{argument} has {len(names)} entries, but the weights have {count} {what}.")
    positions = tuple(f"▁{i}" for i in range(max(queries, keys)))
    return tokens or positions[:queries], key_tokens or positions[:keys]


def _pieces(names: Names) -> Names:
    """Returns tokens as the page reads them: "▁" starts a word, and a token without it continues the one before.

    Byte-level tokenizers mark a space by "Ġ" and write each byte as a letter, WordPiece marks what continues by "##"; where no
    token has a mark, each is a word.
    """
    if any(name.startswith("▁") for name in names):
        return names
    if any("Ġ" in name for name in names):
        return tuple(_from_bytes(name) for name in names)
    return tuple(name[2:] or name if name.startswith("##") else name if name in SPECIAL else f"▁{name}" for name in names)


def _from_bytes(name: str) -> str:
    try:
        text = bytes(BYTES[letter] for letter in name).decode("utf-8", "replace")
    except KeyError:  # a special token
        return f"▁{name}"
    return "▁" + text[1:] if text.startswith(" ") else text.replace("\n", "↵")


def _byte_letters() -> dict[str, int]:
    """Returns the letter of each byte in byte-level tokenizers: its own where it is printable, else one from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


BYTES = _byte_letters()
