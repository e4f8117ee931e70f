"""Code in the documents: Python compiles, commands and options exist, the first examples run, public names are listed."""

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import entformer
from entformer.cli.main import app

from .test_file_map import DOCUMENTS, ROOT

DOCS = ROOT / "docs"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def shell_lines(text: str) -> list[str]:
    """Returns the lines of code blocks that call entformer, whether fenced or indented."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return [line.split("#")[0].strip() for line in re.findall(r"^(?:    |      )?(entformer [a-z].*)$", joined, re.MULTILINE)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_compiles(document: Path) -> None:
    for block in blocks(document.read_text(encoding="utf-8"), "python"):
        if ">>>" not in block:  # doctest runs those
            compile(block, document.name, "exec")


@pytest.mark.parametrize("document", [ROOT / "README.md", DOCS / "index.md"], ids=lambda path: path.name)
def test_the_first_examples_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(document.read_text(encoding="utf-8"), "python"):
        if ">>>" not in block:
            exec(block, names)
    assert names["alpha"].grad is not None
    assert (names["weights"] == 0).any()


def test_the_section_on_your_own_model_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Your own model")[1].split("\n## ")[0]
    names: dict[str, Any] = {}
    for block in blocks(section, "python"):
        exec(block, names)
    learned = [owner.parameter for owner in names["model"].modules() if isinstance(owner, entformer.LearnedAlpha)]
    assert learned
    assert {id(alpha) for alpha in learned} == {id(alpha) for alpha in names["alphas"]}
    assert all(alpha.grad is not None for alpha in learned)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_code_blocks_exist(document: Path) -> None:
    for line in shell_lines(document.read_text(encoding="utf-8")):
        words = shlex.split(line.replace("[", "").replace("]", ""))[1:]
        command: Any = typer.main.get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help", "--debug"}
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        assert used <= options, f"{line}: {sorted(used - options)}"
        assert command.name != "entformer", line


def test_every_public_name_is_in_the_reference() -> None:
    listed = re.findall(
        r"^::: entformer\.(\S+)$", "\n".join(path.read_text() for path in (DOCS / "api").glob("*.md")), re.MULTILINE
    )
    names = {name.rsplit(".", 1)[-1] for name in listed}
    assert len(listed) == len(set(listed))
    assert set(entformer.__all__) - names == {"NORMALIZERS", "__version__"}
    assert set(entformer.hf.__all__) - names == {"SparseHeads", "UnsupportedModel"}


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:")[1]
    pages = [os.path.relpath(path, DOCS) for ending in ("md", "ipynb") for path in DOCS.rglob(f"*.{ending}")]
    assert [page for page in pages if page not in navigation] == []
    assert [page for page in re.findall(r"[\w/-]+\.(?:md|ipynb)", navigation) if not (DOCS / page).exists()] == []
