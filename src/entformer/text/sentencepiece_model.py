"""Which kind of sentencepiece model a file holds; the library does not tell.

A model file is a protocol buffer. Its fields: 1, one per piece (with a type, 3); 2, the trainer (model_type 3,
treat_whitespace_as_suffix 24); 3, the normalizer (precompiled_charsmap 2, add_dummy_prefix 3, remove_extra_whitespaces 4,
escape_whitespaces 5).
"""

from collections.abc import Iterator

from entformer.errors import DataError

BPE = 2  # of model_type; 1, the default, is the unigram model
PLAIN_PIECES = {1, 2, 3, 6}  # normal, unknown, control, byte; the others are user-defined and unused
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # wire types


def uses_plain_bpe(model: bytes) -> bool:
    """Returns whether the model is byte-pair encoding that changes nothing but runs of spaces, as `SubwordTokenizer` trains.

    Args:
        model: Content of a sentencepiece model file.
    """
    pieces, parts = set[int | bytes](), dict[int, dict[int, int | bytes]]()
    for field, value in _fields(model):
        if isinstance(value, bytes) and field == 1:
            pieces.add(dict(_fields(value)).get(3, 1))
        elif isinstance(value, bytes) and field in (2, 3):
            parts[field] = dict(_fields(value))
    trainer, normalizer = parts.get(2, {}), parts.get(3, {})
    spaces = all(normalizer.get(field, 1) == 1 for field in (3, 4, 5))  # all three default to true
    kind = trainer.get(3, 1) == BPE and not trainer.get(24, 0)
    return kind and spaces and not normalizer.get(2) and pieces <= PLAIN_PIECES


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of the fields of a protocol buffer."""
    at = 0
    try:
        while at < len(message):
            key, at = _varint(message, at)
            kind = key & 7
            if kind == _VARINT:
                value, at = _varint(message, at)
                yield key >> 3, value
                continue
            size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind)
            if kind == _BYTES:
                size, at = _varint(message, at)
            if size is None:
                raise DataError("this is not a sentencepiece model, or it is damaged.")
            yield key >> 3, message[at : at + size]
            at += size
    except IndexError as err:
        raise DataError("this is not a sentencepiece model, or it is damaged.") from err


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Returns a number of variable length and the index behind it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
