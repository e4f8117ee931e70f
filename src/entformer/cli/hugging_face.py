"""Texts for Hugging Face models on the command line: `entformer report --hf --text`."""

from pathlib import Path
from typing import Any

from entformer.errors import DataError


def read_texts(path: Path, model: Any, most: int) -> list[Any]:
    """Returns the text of a file in the form that the model reads: as one, line by line, or as pairs.

    Raises:
        DataError: The file cannot be read, or a line is not a pair.
    """
    try:
        whole = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"{path} cannot be read as UTF-8 text ({err}).") from err
    lines = [line for line in whole.splitlines() if line.strip()]
    if not lines:
        raise DataError(f"{path} contains no text.")
    if getattr(model.config, "is_encoder_decoder", False):
        pairs = [tuple(line.split("\t")) for line in lines[:most]]
        for number, pair in enumerate(pairs, 1):
            if len(pair) != 2:
                raise DataError(
                    f"{path}:{number}: expected a source and a target separated by a tab, found {len(pair)} fields."
                )
        return list(pairs)
    if model.can_generate():
        return [whole]
    return lines[:most]
