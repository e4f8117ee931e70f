"""Configurations as frozen dataclasses: fields are checked against their annotations, and dictionaries can be read.

A `Bounds` in an annotation limits a number: `heads: Annotated[int, Bounds(ge=1)] = 8`. pydantic, which the command line reads
recipes with, applies the same limits.
"""

import dataclasses
import types
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from entformer.errors import ArgumentError

__all__ = ["Bounds", "Config"]

_SIGNS = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Limits of a number, under pydantic's names: at least `ge`, greater than `gt`, at most `le`, less than `lt`."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def given(self) -> dict[str, float]:
        """Returns the limits that are set, by name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def contain(self, value: float) -> bool:
        return (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )

    def __str__(self) -> str:
        return " and ".join(f"{_SIGNS[name]} {limit:g}" for name, limit in self.given().items())

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        return {**handler(source), **self.given()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Base of the configurations. Subclasses that define `__post_init__` call this one first."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for name, hint in _hints(type(self)).items():
            value = getattr(self, name)
            if isinstance(hint, type) and issubclass(hint, Config) and isinstance(value, Mapping):
                try:
                    object.__setattr__(self, name, hint.from_dict(value))
                except ArgumentError as err:
                    raise ArgumentError(f"{name}: {err}") from None
            elif not _matches(value, hint):
                raise ArgumentError(f"{name} must be {_describe(hint)}, not {value!r}.")
            elif isinstance(value, int) and not isinstance(value, bool) and _is_float(hint):
                object.__setattr__(self, name, float(value))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Builds a configuration from a dictionary, such as a section of model.json. Nested sections are dictionaries too.

        Raises:
            ArgumentError: a key is unknown or missing, or a value does not fit.
        """
        values = cls.upgrade(dict(values))
        known = {field.name: field for field in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise ArgumentError(f"unknown field {name!r}; the fields are {', '.join(known)}.")
        for name, field in known.items():
            if name not in values and field.default is field.default_factory is dataclasses.MISSING:
                raise ArgumentError(f"the field {name!r} is missing.")
        return cls(**values)

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Returns the values of a file of an earlier version under their present names."""
        return values

    def to_dict(self) -> dict[str, Any]:
        """Returns the configuration as a dictionary that `from_dict` reads."""
        return dataclasses.asdict(self)


def _hints(config: Any) -> dict[str, Any]:
    hints = get_type_hints(config, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(config)}


def _members(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation alone."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _is_float(hint: Any) -> bool:
    bare = [get_args(member)[0] if get_origin(member) is Annotated else member for member in _members(hint)]
    return float in bare and int not in bare


def _matches(value: Any, hint: Any) -> bool:
    for member in _members(hint):
        origin, arguments = get_origin(member), get_args(member)
        if origin is Annotated:
            fits = _matches(value, arguments[0]) and arguments[1].contain(value)
        elif origin is Literal:
            fits = isinstance(value, str) and value in arguments
        elif origin is dict:
            fits = isinstance(value, dict) and all(_matches(part, arguments[1]) for part in value.values())
        elif member in (int, float):
            fits = isinstance(value, (int, float) if member is float else int) and not isinstance(value, bool)
        else:
            fits = isinstance(value, member)
        if fits:
            return True
    return False


def _describe(hint: Any) -> str:
    """The annotation in words."""
    names = {int: "an integer", float: "a number", bool: "True or False", str: "a string", types.NoneType: "None"}
    shown = []
    for member in _members(hint):
        origin, arguments = get_origin(member), get_args(member)
        if origin is Annotated:
            shown.append(f"{names[arguments[0]]} ({arguments[1]})")
        elif origin is Literal:
            shown += map(repr, arguments)
        elif origin is dict:
            shown.append("a dictionary of names and numbers")
        else:
            shown.append(names.get(member, member.__name__))
    return " or ".join(shown)
