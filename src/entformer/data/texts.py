"""Names of parallel text on the command line and in recipes.

data/train          data/train.en and data/train.de, plain or .gz, for the languages en and de
a.txt,b.txt         source and target file
pairs.tsv           one file with both sides in its columns (.tsv or .tab, plain or .gz)
"""

from collections.abc import Sequence
from pathlib import Path

from entformer.data.corpus import ParallelText
from entformer.errors import ArgumentError, DataError

TSV_ENDS = (".tsv", ".tsv.gz", ".tab", ".tab.gz")


def find_text(name: str, source_language: str, target_language: str, columns: tuple[int, int] = (1, 2)) -> ParallelText:
    """Returns the files that a name stands for.

    Raises:
        DataError: There are no such files.
        ArgumentError: The name is malformed.
    """
    if is_tsv(name):
        return ParallelText(Path(name), None, columns)
    if is_pair(name):
        parts = name.split(",")
        if len(parts) != 2 or not all(parts):
            raise ArgumentError(f"expected SOURCE,TARGET (two files and a comma), got {name!r}.")
        return ParallelText(Path(parts[0]), Path(parts[1]))
    return ParallelText(_side(name, source_language), _side(name, target_language))


def find_texts(
    names: Sequence[str], source_language: str, target_language: str, columns: tuple[int, int] = (1, 2)
) -> tuple[ParallelText, ...]:
    """Returns the texts of a recipe's list: two plain files are one text, anything else is a text per entry."""
    if len(names) == 2 and not any(is_tsv(name) or is_pair(name) for name in names):
        return (ParallelText(Path(names[0]), Path(names[1])),)
    return tuple(find_text(name, source_language, target_language, columns) for name in names)


def refuse_swapped(text: ParallelText, source_language: str, target_language: str) -> None:
    """Raises `ArgumentError` if a file's suffix is the language of the other side."""
    if text.target is None:
        return
    for path, own, other in ((text.source, source_language, target_language), (text.target, target_language, source_language)):
        if own != other and _ending(path) == other.lower():
            raise ArgumentError(
                f"{path} is given as the {own} side and ends in .{other}: source and target are swapped. Pass the "
                f"{source_language} file first, or swap the languages ({target_language}-{source_language})."
            )


def is_swapped(text: ParallelText, source_language: str, target_language: str) -> bool:
    """Returns whether the suffixes of the two files are the languages in the opposite order."""
    return tuple(map(_ending, text.files)) == (target_language.lower(), source_language.lower())


def is_tsv(name: str) -> bool:
    """Returns whether the name is that of a TSV file."""
    return name.endswith(TSV_ENDS)


def is_pair(name: str) -> bool:
    """Returns whether the name consists of two files and a comma."""
    return "," in name and not Path(name).exists()


def _ending(path: Path) -> str:
    return path.name.lower().removesuffix(".gz").rpartition(".")[2]


def _side(prefix: str, language: str) -> Path:
    tried = [Path(f"{prefix}.{language}{end}") for end in ("", ".gz")]
    for path in tried:
        if path.exists():
            return path
    hint = ""
    if Path(prefix).is_file():
        hint = f" ({prefix} is a file: pass both sides as SOURCE,TARGET, or rename it to .tsv if it has both in columns)"
    raise DataError(f"{tried[0]}: there is no such file, nor {tried[1].name}{hint}; pass the path without .{language}.")
