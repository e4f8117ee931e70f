"""Recipe files: a path or the name of a built-in recipe, and `--set` texts, become a `Recipe`, or errors with file:line.

Relative paths in a file start from the folder of that file; those given by `--set` start from the working folder.
"""

import dataclasses
import difflib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from entformer.data.prep_folder import stored
from entformer.data.texts import find_texts, is_pair, refuse_swapped
from entformer.errors import ArgumentError, EntformerError
from entformer.training.effects import KINDS, Ineffective, Place, ineffective, sentence
from entformer.training.recipe import Recipe

_ALSO: dict[Place, tuple[str, ...]] = {("model",): ("preset", "attention")}  # what expand_model takes besides
_PATHS = ("prepared", "subwords", "from", "train", "valid", "test")  # under data
_SET = "--set "  # how the place of a `--set` text begins
UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")  # as pydantic calls it for its models and for dataclasses


class RecipeError(ArgumentError):
    """A recipe has mistakes, each a sentence that begins with its place."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = f"{len(self.problems)} mistakes: " if len(self.problems) > 1 else ""
        super().__init__(count + " ".join(self.problems))


def builtin_recipe() -> dict[str, Path]:
    """The recipes that come with entformer, by name."""
    folder = resources.files("entformer") / "recipes"
    return {
        Path(entry.name).stem: Path(str(entry)) for entry in sorted(folder.iterdir(), key=str) if entry.name.endswith(".yaml")
    }


def find(recipe: str | Path) -> Path:
    """The file of a recipe given as a path or a built-in name."""
    path = Path(recipe)
    if path.is_file():
        return path
    names = builtin_recipe()
    if str(recipe) in names:
        return names[str(recipe)]
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise ArgumentError(f"there is no recipe file {path}.")
    close = difflib.get_close_matches(str(recipe), names, n=1)
    advice = f"did you mean {close[0]!r}?" if close else f"built-in recipes: {', '.join(names)}."
    raise ArgumentError(f"there is no recipe {str(recipe)!r}; {advice}")


def load_recipe(recipe: str | Path, settings: Sequence[str] = (), *, check_texts: bool = False) -> Recipe:
    """Read a recipe and apply `--set` texts such as "training.lr=1e-3".

    Args:
        recipe: A file, or the name of a built-in recipe.
        settings: The `--set` texts.
        check_texts: Also look whether the text that is to be prepared is there.

    Raises:
        RecipeError: There are mistakes; it lists all of them.
    """
    path = find(recipe)
    # What a built-in recipe is called must not depend on where the package is installed.
    shown = f"{path.stem}.yaml" if path in builtin_recipe().values() else str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ArgumentError(f"{shown} cannot be read ({problem}).") from problem
    values, places = parse(text, shown)
    _start_paths_from(values, path.parent)
    values.setdefault("name", path.stem)
    for setting in settings:
        _apply(values, places, setting)
    # A run folder's recipe has every value written out, those of earlier versions also values without effect.
    written_out = path.name == "recipe.yaml" and (path.parent / "checkpoints").is_dir()
    loaded = build(values, places, shown, written_out=written_out)
    if check_texts and (missing := _missing_texts(loaded, places, shown)):
        raise RecipeError(missing)
    return loaded


def saved_recipe(path: Path) -> Recipe | None:
    """Return the recipe that a run folder holds; None if it is missing, damaged or of another version."""
    try:
        return Recipe.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError):
        return None


def build(values: dict[str, Any], places: dict[Place, str], shown: str, *, written_out: bool = False) -> Recipe:
    """Check the values.

    Args:
        values: What the file and the `--set` texts say.
        places: Where each key stands.
        shown: How messages call the recipe.
        written_out: The recipe lists every value, so only those of `--set` are taken for somebody's choice.

    Raises:
        RecipeError: There are mistakes; it lists all of them.
    """
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as problem:
        raise RecipeError(_mistakes(problem, values, places, shown)) from problem
    if found := _without_effect(recipe, places, shown, written_out):
        raise RecipeError(found)
    return recipe


def refuse_ineffective(recipe: Recipe) -> None:
    """Refuse a recipe made in Python in which somebody set what cannot take effect."""
    if found := ineffective(recipe):
        raise RecipeError([f"recipe: {sentence(one)}" for one in found])


def _missing_texts(recipe: Recipe, places: dict[Place, str], shown: str) -> list[str]:
    """A sentence for every text of the recipe that is not there although the data are still to be prepared of it."""
    data, found = recipe.data, []
    if data.prepared is not None and stored(data.prepared) is not None:
        return []
    for split in ("train", "valid", "test"):
        try:
            texts = find_texts(getattr(data, split), data.source_language or "", data.target_language or "", data.columns)
            for text in texts:
                refuse_swapped(text, data.source_language or "", data.target_language or "")
            gone = [path for text in texts for path in text.files if not path.is_file()]
            found += [f"{_where(('data', split), places, shown)}: {path}: there is no such file." for path in gone]
        except EntformerError as problem:
            found.append(f"{_where(('data', split), places, shown)}: {problem}")
    if data.prepared is not None and data.corpus is None and not data.train:
        place = _where(("data", "prepared"), places, shown)
        found.append(f"{place}: {data.prepared} is no prepared folder; make it with `entformer prep {data.prepared}`.")
    return found


def _mistakes(problem: ValidationError, values: dict[str, Any], places: dict[Place, str], shown: str) -> list[str]:
    """All mistakes. Those that pydantic reaches only when others are gone are looked for without the wrong values."""
    found: list[str] = []
    errors = problem.errors(include_url=False)
    # An unknown key explains most other problems, so it is named first.
    for error in sorted(errors, key=lambda error: error["type"] not in UNKNOWN_KEY):
        place: Place = error["loc"]
        if place[:1] == ("model",) and place[1:2] in [(kind,) for kind in KINDS] and place not in places:
            place = ("model", "attention", *place[2:])  # where the value was written before it was spread over the kinds
        text = f"{_where(place, places, shown)}: {_sentence(error, place)}"
        if text not in found:
            found.append(text)
    if all(_remove(values, error["loc"], places) for error in errors):
        try:
            found += _without_effect(Recipe.model_validate(values), places, shown, written_out=False)
        except ValidationError as more:
            if len(more.errors()) < len(errors) or {error["loc"] for error in more.errors()}.isdisjoint(
                e["loc"] for e in errors
            ):
                found += [text for text in _mistakes(more, values, places, shown) if text not in found]
    return found


def _remove(values: dict[str, Any], place: Place, places: dict[Place, str]) -> bool:
    """Take a wrong value out; whether that was possible. What was spread over the kinds is in `attention`."""
    written = place
    if place[:1] == ("model",) and place[1:2] in [(kind,) for kind in KINDS] and place not in places:
        written = ("model", "attention", *place[2:])
    here: Any = values
    for key in written[:-1]:
        here = here.get(key) if isinstance(here, dict) else None
    if len(written) < 2 or not isinstance(here, dict):
        return False
    here.pop(written[-1], None)
    return True


def _without_effect(recipe: Recipe, places: dict[Place, str], shown: str, written_out: bool) -> list[str]:
    """The settings without effect, but for those of the file that a `--set` has made so."""
    found: list[str] = []
    for one in ineffective(recipe):
        place = one.place
        if len(place) == 3 and place not in places:
            place = ("model", "attention", place[2])
        own = places.get(place, shown)
        overruled = any(places.get(cause, "").startswith(_SET) for cause in one.causes)
        if own.startswith(_SET) or not (written_out or overruled):
            text = f"{_where(place, places, shown)}: {sentence(Ineffective(place, one.causes, one.reason))}"
            if text not in found:
                found.append(text)
    return found


def parse(text: str, shown: str) -> tuple[dict[str, Any], dict[Place, str]]:
    """YAML -> its values, and where each key stands ("recipe.yaml:12")."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        at = f":{mark.line + 1}" if mark else ""
        raise ArgumentError(f"{shown}{at}: this is not YAML ({getattr(problem, 'problem', None) or problem}).") from problem
    if not isinstance(node, yaml.MappingNode) or not isinstance(values, dict):
        raise ArgumentError(f"{shown}:1: a recipe must be a mapping with the keys name, data, model, training, decoding.")
    places: dict[Place, str] = {}
    for place, line in _lines(node, ()):
        if place in places:
            raise ArgumentError(f"{shown}:{line}: the key {place[-1]!r} is there twice.")
        places[place] = f"{shown}:{line}"
    return values, places


def _lines(node: yaml.Node, place: Place) -> Iterator[tuple[Place, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*place, key.value), key.start_mark.line + 1
            yield from _lines(value, (*place, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield (*place, i), value.start_mark.line + 1


def _start_paths_from(values: dict[str, Any], folder: Path) -> None:
    data = values.get("data")
    if not isinstance(data, dict):
        return
    for key in _PATHS:
        given = data.get(key)
        if isinstance(given, str):
            data[key] = _from_folder(given, folder, pair=key not in ("prepared", "subwords", "from"))
        elif isinstance(given, list):
            data[key] = [_from_folder(item, folder, pair=True) if isinstance(item, str) else item for item in given]


def _from_folder(given: str, folder: Path, *, pair: bool = False) -> str:
    if pair and is_pair(str(folder / given)):
        return ",".join(_from_folder(part.strip(), folder) if part.strip() else "" for part in given.split(","))
    return given if "://" in given else str((folder / Path(given).expanduser()).resolve())


def _apply(values: dict[str, Any], places: dict[Place, str], setting: str) -> None:
    """One `--set a.b=c`."""
    key, separator, text = setting.partition("=")
    parts = key.strip().split(".")
    if not separator or not all(parts):
        raise ArgumentError(f"--set {setting}: write it as section.key=value, such as training.lr=1e-3.")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise ArgumentError(f"--set {setting}: the value is not YAML ({getattr(problem, 'problem', problem)}).") from problem
    if parts[0] == "data" and len(parts) == 2:
        holder = {"data": {parts[1]: value}}
        _start_paths_from(holder, Path.cwd())
        value = holder["data"][parts[1]]
    here = values
    for part in parts[:-1]:
        inner = here.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ArgumentError(f"--set {setting}: {part!r} is a value, it has no keys below it.")
        here = inner
    here[parts[-1]] = value
    for depth in range(1, len(parts) + 1):
        if depth == len(parts) or tuple(parts[:depth]) not in places:
            places[tuple(parts[:depth])] = f"{_SET}{setting}"


def _where(place: Place, places: dict[Place, str], shown: str) -> str:
    """The place of the key, or of the nearest key around it."""
    while place and place not in places:
        place = place[:-1]
    return places.get(place, shown)


def _sentence(error: Any, place: Place) -> str:
    section = ".".join(str(part) for part in place[:-1]) or "the recipe"
    key = str(place[-1]) if place else "the recipe"
    if error["type"] in UNKNOWN_KEY:
        return f"unknown key {key!r} in {section}{_suggestion(key, place[:-1])}"
    if error["type"] == "missing":
        return f"the key {key!r} is missing in {section}."
    message = str(error["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:] if message[:2].istitle() else message
    full = ".".join(str(part) for part in place) or "the recipe"
    given = f", not {error['input']!r}" if not isinstance(error["input"], dict) and error["type"] != "value_error" else ""
    return f"{full}: {message}{given}."


def _suggestion(key: str, section: Place) -> str:
    known = keys_of(section)
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    # "drop_out" and "dropOut" are spellings of "dropout", whatever the distance says.
    same = [name for name in known if _letters(name) == _letters(key)]
    if same or close:
        return f"; did you mean {(same or close)[0]!r}?"
    for other in (("data",), ("model",), ("training",), ("decoding",)):
        if other != section and key in keys_of(other):
            return f"; {key!r} belongs in {other[0]}."
    return f"; it takes {', '.join(known)}."


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def keys_of(section: Place) -> list[str]:
    """The keys a section takes."""
    kind: Any = Recipe
    for part in section:
        name = KINDS[0] if part == "attention" else str(part)
        kind = _fields(kind).get(name)
    names = list(_fields(kind))
    return [name for name in names if section != ("model",) or name != "vocab_size"] + list(_ALSO.get(section, ()))


def _fields(section: Any) -> dict[str, Any]:
    """Key -> type of a section, which is a pydantic model or a dataclass; empty for anything else."""
    if isinstance(section, type) and issubclass(section, BaseModel):
        return {field.alias or name: field.annotation for name, field in section.model_fields.items()}
    if isinstance(section, type) and dataclasses.is_dataclass(section):
        return {field.name: field.type for field in dataclasses.fields(section)}
    return {}


def to_yaml(recipe: Recipe) -> str:
    """The resolved recipe as text."""
    return yaml.safe_dump(recipe.resolved(), sort_keys=False, allow_unicode=True, width=120)


def differences(old: dict[str, Any], new: dict[str, Any], place: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old, new) wherever two resolved recipes differ; a key that is not there counts as None."""
    changed: dict[str, tuple[Any, Any]] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            changed |= differences(before, after, f"{place}{key}.")
        elif before != after:
            changed[f"{place}{key}"] = (before, after)
    return changed
