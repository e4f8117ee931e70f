"""The wording of errors in recipes: what pydantic found wrong with a value, as one sentence in the words of the recipe."""

import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from entformer.training.effects import KINDS, Place
from entformer.training.recipe import Recipe, RunRecipe

UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")  # pydantic's names, for models and for dataclasses
TYPE_ERRORS = ("_type", "_parsing", "_from_float")  # how pydantic's names of wrong types end; they begin with the type
TYPES = {
    "int": "must be an integer",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be text",
    "tuple": "must be a list",
    "list": "must be a list",
}
PATTERNS = {
    "device": "must be auto, cpu, cuda or cuda:N",
    "name": "must consist of letters, digits, '.', '_' and '-'",
}
_ALSO: dict[Place, tuple[str, ...]] = {("model",): ("preset", "attention")}  # keys that expand_model replaces


def _is_member(part: Any) -> bool:
    """Whether part of a location is no key, but a type that pydantic tried: "float" or "dict[str,int]" of `float | dict`."""
    return isinstance(part, str) and (part in ("float", "int", "str", "bool") or part.startswith("constrained-") or "[" in part)


def without_members(place: Place) -> Place:
    """Returns the location of a value, without the types that were tried for it."""
    return tuple(part for part in place if not _is_member(part))


def tried_members(errors: Sequence[Any]) -> list[Any]:
    """Returns the errors without those of types that the value was not meant for: mappings if it is none, and the reverse."""

    def is_meant(error: Any) -> bool:
        is_mapping = isinstance(error["input"], dict)
        in_union = without_members(error["loc"]) != error["loc"]
        return not in_union or not error["type"].endswith("_type") or is_mapping == (error["type"] == "dict_type")

    return [error for error in errors if is_meant(error)]


def sentences(errors: Sequence[Any], place: Place, kind: type[RunRecipe]) -> list[str]:
    """Returns what is wrong with the value at `place`; what types that are all allowed there demand is one sentence."""
    error = errors[0]
    section = ".".join(str(part) for part in place[:-1]) or "the recipe"
    key = str(place[-1]) if place else "the recipe"
    if error["type"] in UNKNOWN_KEY:
        return [f"unknown key {key!r} in {section}{_suggestion(key, place[:-1], kind)}"]
    if error["type"] == "missing":
        return [f"the key {key!r} is missing in {section}."]
    demands = list(dict.fromkeys(_demand(one, key) for one in errors))
    if all(demand.startswith("must be ") for demand in demands):
        demands = ["must be " + " or ".join(demand.removeprefix("must be ") for demand in demands)]
    full = ".".join(str(part) for part in place) or "the recipe"
    given = f", not {error['input']!r}" if not isinstance(error["input"], dict) and error["type"] != "value_error" else ""
    return [f"{full}{'' if demand.startswith('must ') else ':'} {demand}{given}." for demand in demands]


def _demand(error: Any, key: str) -> str:
    """Returns what a value must be."""
    message = str(error["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:] if message[:2].istitle() else message
    if error["type"] == "string_pattern_mismatch":
        return PATTERNS.get(key, message)
    if error["type"].endswith(TYPE_ERRORS):
        message = TYPES.get(error["type"].split("_")[0], message)
    return message.replace("input should be ", "must be ", 1)


def _suggestion(key: str, section: Place, kind: type[RunRecipe]) -> str:
    known = get_keys(section, kind)
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    # "drop_out" and "dropOut" always suggest "dropout", whatever their distance.
    same = [name for name in known if _letters(name) == _letters(key)]
    if same or close:
        return f"; did you mean {(same or close)[0]!r}?"
    for other in (("data",), ("model",), ("training",), ("decoding",)):
        if other != section and key in get_keys(other, kind):
            return f"; {key!r} belongs in {other[0]}."
    return f"; valid keys: {', '.join(known)}."


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def get_keys(section: Place, recipe: type[RunRecipe] = Recipe) -> list[str]:
    """Returns the keys of a section."""
    kind: Any = recipe
    for part in section:
        own = _fields(kind)
        kind = own.get(str(part)) or own.get(KINDS[0])  # `attention` of a translation model has the keys of each type
    names = list(_fields(kind))
    return [name for name in names if section != ("model",) or name != "vocab_size"] + list(_ALSO.get(section, ()))


def _fields(section: Any) -> dict[str, Any]:
    """Key -> type of a section, which is a pydantic model or a dataclass; empty for anything else."""
    if isinstance(section, type) and issubclass(section, BaseModel):
        return {field.alias or name: field.annotation for name, field in section.model_fields.items()}
    if isinstance(section, type) and dataclasses.is_dataclass(section):
        return {field.name: field.type for field in dataclasses.fields(section)}
    return {}
