"""Reading recipes: files, built-in recipes and `--set` options become a `Recipe`; errors name the file and line.

Built-in recipes lie in `recipes/`: `NAME.yaml` is complete, and `DATA-ATTENTION` is `data/DATA.yaml` with
`attention/ATTENTION.yaml` merged into it. Relative paths in a file start from the directory of that file, those given by
`--set` from the working directory.
"""

import difflib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, overload

import yaml
from pydantic import ValidationError

from entformer.data.prep_folder import stored
from entformer.data.texts import find_texts, is_pair, refuse_swapped
from entformer.errors import ArgumentError, EntformerError
from entformer.training.effects import KINDS, Place, ineffective
from entformer.training.lm_recipe import LMRecipe
from entformer.training.recipe import Recipe, RunRecipe, as_written
from entformer.training.recipe_errors import UNKNOWN_KEY, sentences, tried_members, without_members

AnyRecipe = TypeVar("AnyRecipe", bound=RunRecipe)
_PATHS = ("prepared", "subwords", "from", "text", "train", "valid", "test")  # under data
_SET = "--set "  # how the location of a `--set` option begins

RECIPES: dict[str, type[RunRecipe]] = {"translation": Recipe, "language_modeling": LMRecipe}
"""The key `task` of a recipe -> its class; translation if there is none."""


class RecipeError(ArgumentError):
    """A recipe has errors; each message begins with its location."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = f"{len(self.problems)} errors: " if len(self.problems) > 1 else ""
        super().__init__(count + " ".join(self.problems))


def builtin_recipes() -> dict[str, tuple[Path, ...]]:
    """Returns the built-in recipes: name -> its files, of which later ones override earlier ones."""
    root = Path(str(resources.files("entformer") / "recipes"))
    fragments = sorted((root / "attention").glob("*.yaml"))
    composed = {
        f"{data.stem}-{attention.stem}": (data, attention) for data in (root / "data").glob("*.yaml") for attention in fragments
    }
    complete = {path.stem: (path,) for path in root.glob("*.yaml")}
    return dict(sorted((composed | complete).items()))


def builtin_titles() -> dict[str, str]:
    """Returns the title of every built-in recipe, made of the first comment line of its files."""
    return {
        name: ", ".join(path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for path in files)
        for name, files in builtin_recipes().items()
    }


def load_recipe(recipe: str | Path, settings: Sequence[str] = (), *, check_texts: bool = False) -> RunRecipe:
    """Reads a recipe and applies `--set` options such as "training.lr=1e-3".

    Args:
        recipe: A file, or the name of a built-in recipe.
        settings: The values of `--set`.
        check_texts: Also check that the text to be prepared exists.

    Raises:
        RecipeError: The recipe has errors; the message lists all of them.
    """
    path = Path(recipe)
    name, files = (path.stem, (path,)) if path.is_file() else (str(recipe), _find_builtin(recipe))
    values: dict[str, Any] = {}
    places: dict[Place, str] = {}
    for file in files:
        shown = str(path) if path.is_file() else file.name  # independent of where the package is installed
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as err:
            raise ArgumentError(f"{shown} cannot be read ({err}).") from err
        own, own_places = parse(text, shown)
        _resolve_paths(own, file.parent)
        values, places = _merge(values, own), places | own_places
    values.setdefault("name", name)
    # The recipe of a run lists every value; recipes of earlier versions also list values without effect.
    written_out = path.name == "recipe.yaml" and (path.parent / "checkpoints").is_dir()
    values = as_written(values) if written_out else values
    for setting in settings:
        _apply(values, places, setting)
    shown = str(recipe)
    loaded = build(values, places, shown, written_out=written_out)
    if check_texts and isinstance(loaded, Recipe) and (missing := _missing_texts(loaded, places, shown)):
        raise RecipeError(missing)
    return loaded


def _find_builtin(recipe: str | Path) -> tuple[Path, ...]:
    names = builtin_recipes()
    if str(recipe) in names:
        return names[str(recipe)]
    path = Path(recipe)
    if path.suffix or len(path.parts) > 1:
        advice = "" if path.suffix in (".yaml", ".yml") else "; a recipe is a YAML file or a name of `entformer config list`"
        raise ArgumentError(f"{path}: there is no such file{advice}.")
    close = difflib.get_close_matches(str(recipe), names, n=1)
    advice = f"did you mean {close[0]!r}?" if close else f"built-in recipes: {', '.join(names)}."
    raise ArgumentError(f"there is no recipe {str(recipe)!r}; {advice}")


def _merge(base: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in override.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def recipe_class(values: Any) -> type[RunRecipe]:
    """Returns the class for the values of a recipe, by its task."""
    task = values.get("task", "translation") if isinstance(values, dict) else ""
    return RECIPES.get(task, Recipe) if isinstance(task, str) else Recipe


@overload
def saved_recipe(path: Path) -> RunRecipe | None: ...
@overload
def saved_recipe(path: Path, kind: type[AnyRecipe]) -> AnyRecipe | None: ...
def saved_recipe(path: Path, kind: type[RunRecipe] | None = None) -> RunRecipe | None:
    """Returns the recipe of a run directory; None if it is missing, damaged, of another version or not of this `kind`."""
    try:
        values = as_written(yaml.safe_load(path.read_text(encoding="utf-8")))
        return (recipe_class(values) if kind is None else kind).model_validate(values)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValidationError):
        return None


def build(values: dict[str, Any], places: dict[Place, str], shown: str, *, written_out: bool = False) -> RunRecipe:
    """Validates the values of a recipe.

    Args:
        values: Values of the files and the `--set` options.
        places: The location of each key.
        shown: The recipe's name in messages.
        written_out: The recipe lists every value, so only those of `--set` count as chosen by the user.

    Raises:
        RecipeError: The recipe has errors; the message lists all of them.
    """
    try:
        recipe = recipe_class(values).model_validate(values)
    except ValidationError as err:
        raise RecipeError(_messages(err, values, places, shown)) from err
    if found := _without_effect(recipe, places, shown, written_out):
        raise RecipeError(found)
    return recipe


def refuse_ineffective(recipe: RunRecipe) -> None:
    """Raises RecipeError if a recipe made in Python sets a value that has no effect."""
    if found := ineffective(recipe):
        raise RecipeError([f"recipe: {one}" for one in found])


def _missing_texts(recipe: Recipe, places: dict[Place, str], shown: str) -> list[str]:
    """Returns a message for every missing text, unless the data are prepared already."""
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
        except EntformerError as err:
            found.append(f"{_where(('data', split), places, shown)}: {err}")
    if data.prepared is not None and data.corpus is None and not data.train:
        place = _where(("data", "prepared"), places, shown)
        found.append(f"{place}: {data.prepared} is not a prepared directory; create it with `entformer prep {data.prepared}`.")
    return found


def _messages(err: ValidationError, values: dict[str, Any], places: dict[Place, str], shown: str) -> list[str]:
    """Returns all error messages. Pydantic reports some errors only when others are fixed, so wrong values are removed."""
    found: list[str] = []
    kind = recipe_class(values)
    errors = tried_members(err.errors(include_url=False))
    by_place: dict[Place, list[Any]] = {}
    for error in errors:
        by_place.setdefault(_as_written(error["loc"], places), []).append(error)
    # An unknown key explains most other errors, so it comes first.
    for place, own in sorted(by_place.items(), key=lambda item: item[1][0]["type"] not in UNKNOWN_KEY):
        found += [f"{_where(place, places, shown)}: {text}" for text in sentences(own, place, kind)]
    if all(_remove(values, _as_written(error["loc"], places)) for error in errors):
        try:
            found += _without_effect(kind.model_validate(values), places, shown, written_out=False)
        except ValidationError as more:
            before, after = ({error["loc"] for error in one.errors()} for one in (err, more))
            if len(after) < len(before) or after.isdisjoint(before):
                found += [text for text in _messages(more, values, places, shown) if text not in found]
    return found


def _as_written(place: Place, places: dict[Place, str]) -> Place:
    """Returns where the user wrote a value: `model.attention` holds for all attention types."""
    place = without_members(place)
    spread = len(place) >= 2 and place[0] == "model" and place[1] in KINDS and place not in places
    return ("model", "attention", *place[2:]) if spread else place


def _remove(values: dict[str, Any], place: Place) -> bool:
    """Removes a wrong value; returns whether that was possible."""
    here: Any = values
    for key in place[:-1]:
        here = here.get(key) if isinstance(here, dict) else None
    if len(place) < 2 or not isinstance(here, dict):
        return False
    here.pop(place[-1], None)
    return True


def _without_effect(recipe: RunRecipe, places: dict[Place, str], shown: str, written_out: bool) -> list[str]:
    """Returns a message for every setting without effect, except those of a file that a `--set` disables."""
    found = []
    for one in ineffective(recipe):
        overruled = any(places.get(cause, "").startswith(_SET) for cause in one.causes)
        if places.get(one.place, shown).startswith(_SET) or not (written_out or overruled):
            found.append(f"{_where(one.place, places, shown)}: {one}")
    return found


def parse(text: str, shown: str) -> tuple[dict[str, Any], dict[Place, str]]:
    """Returns the values of a YAML text and the location of each key ("recipe.yaml:12")."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        at = f":{mark.line + 1}" if mark else ""
        raise ArgumentError(f"{shown}{at}: invalid YAML ({getattr(err, 'problem', None) or err}).") from err
    if not isinstance(node, yaml.MappingNode) or not isinstance(values, dict):
        raise ArgumentError(f"{shown}:1: a recipe must be a mapping with the keys name, data, model, training, decoding.")
    places: dict[Place, str] = {}
    for place, line in _lines(node, ()):
        if place in places:
            raise ArgumentError(f"{shown}:{line}: duplicate key {place[-1]!r}.")
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


def _resolve_paths(values: dict[str, Any], directory: Path) -> None:
    data = values.get("data")
    if not isinstance(data, dict):
        return
    for key in _PATHS:
        given = data.get(key)
        if isinstance(given, str):
            data[key] = _resolve_path(given, directory, pair=key not in ("prepared", "subwords", "from", "text"))
        elif isinstance(given, list):
            data[key] = [_resolve_path(item, directory, pair=True) if isinstance(item, str) else item for item in given]


def _resolve_path(given: str, directory: Path, *, pair: bool = False) -> str:
    if pair and is_pair(str(directory / given)):
        return ",".join(_resolve_path(part.strip(), directory) if part.strip() else "" for part in given.split(","))
    return given if "://" in given else str((directory / Path(given).expanduser()).resolve())


def _apply(values: dict[str, Any], places: dict[Place, str], setting: str) -> None:
    """Applies one `--set a.b=c`."""
    key, separator, text = setting.partition("=")
    parts = key.strip().split(".")
    if not separator or not all(parts):
        raise ArgumentError(f"--set {setting}: write it as section.key=value, such as training.lr=1e-3.")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as err:
        raise ArgumentError(f"--set {setting}: the value is not valid YAML ({getattr(err, 'problem', err)}).") from err
    if parts[0] == "data" and len(parts) == 2:
        holder = {"data": {parts[1]: value}}
        _resolve_paths(holder, Path.cwd())
        value = holder["data"][parts[1]]
    here = values
    for part in parts[:-1]:
        inner = here.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ArgumentError(f"--set {setting}: {part!r} is a value without keys.")
        here = inner
    here[parts[-1]] = value
    for depth in range(1, len(parts) + 1):
        if depth == len(parts) or tuple(parts[:depth]) not in places:
            places[tuple(parts[:depth])] = f"{_SET}{setting}"


def _where(place: Place, places: dict[Place, str], shown: str) -> str:
    """Returns the location of a key, or of the nearest enclosing key that has one."""
    while place and place not in places:
        place = place[:-1]
    return places.get(place, shown)


def to_yaml(recipe: RunRecipe) -> str:
    """Returns the resolved recipe as YAML."""
    return yaml.safe_dump(recipe.resolved(), sort_keys=False, allow_unicode=True, width=120)


def differences(old: dict[str, Any], new: dict[str, Any], place: str = "") -> dict[str, tuple[Any, Any]]:
    """Returns dotted key -> (old, new) for every difference of two resolved recipes; a missing key counts as None."""
    changed: dict[str, tuple[Any, Any]] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            changed |= differences(before, after, f"{place}{key}.")
        elif before != after:
            changed[f"{place}{key}"] = (before, after)
    return changed
