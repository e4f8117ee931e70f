"""Files, names, links and commands in the documents exist, and their examples give the output they show."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "entformer"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MADE_BY_COMMANDS = ("build/", "entformer-demo/", "bench-results/", ".venv")
ENDINGS = (".py", ".cpp", ".h", ".md", ".toml", ".png", ".yaml", ".svg")


def quoted(text: str) -> list[str]:
    """Returns what stands in single backticks outside code blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def find(path: str) -> Path | None:
    """Resolves a path relative to the repository, the package or its C++ sources."""
    return next((base / path for base in (ROOT, PACKAGE, PACKAGE / "csrc") if (base / path).exists()), None)


def missing_names(text: str) -> list[str]:
    """Returns the `file::name` mentions whose file is missing or does not define the name."""
    missing = []
    for mention in quoted(text):
        path, separator, name = mention.partition("::")
        if not separator or not path.endswith(ENDINGS):
            continue
        file = find(path)
        if file is None or not defines(file, name):
            missing.append(mention)
    return missing


def defines(file: Path, name: str) -> bool:
    source, name = file.read_text(encoding="utf-8"), re.escape(name)
    if file.suffix == ".py":
        return re.search(rf"^\s*(?:(?:async )?def|class) {name}\b|^{name}\b[^=\n]*=", source, re.MULTILINE) is not None
    # C++: a function, a type or a constant; the name followed by its parameters, body or value, with a type before it.
    return re.search(rf"^[^\n/#]*\b\w[\w&*<>:]*\s+{name}\s*[({{=]", source, re.MULTILINE) is not None


def missing_files(text: str) -> list[str]:
    """Returns the paths in backticks or relative links that do not exist."""
    paths = [mention for mention in quoted(text) if re.fullmatch(r"[\w.\-/*]+", mention)]
    paths = [path for path in paths if path.endswith(ENDINGS) or re.fullmatch(r"(?:[\w.\-]+/)+[\w.\-]*", path)]
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:|#", link)]
    links += [link for link in re.findall(r'(?:src|href|srcset)="([^"]+)"', text) if not re.match(r"[a-z]+:|#", link)]
    return [path for path in paths + links if not path.startswith(MADE_BY_COMMANDS) and not _exists(path)]


def _exists(path: str) -> bool:
    if "*" in path:
        return any(ROOT.glob(path)) or any(PACKAGE.glob(path))
    return find(path) is not None or (ROOT / "docs" / path).exists()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_and_name_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert missing_names(text) == []
    assert missing_files(text) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_make_target_and_command_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([a-z0-9-]+)", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"
    command_line = "\n".join(file.read_text(encoding="utf-8") for file in (PACKAGE / "cli").glob("*.py"))
    for command in re.findall(r"`entformer ([a-z]+)", text):
        assert re.search(rf'^def {command}\(|"{command}"', command_line, re.MULTILINE), f"entformer {command}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_give_the_output_they_show(document: Path) -> None:
    result = doctest.testfile(str(document), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_every_package_and_kernel_source_is_documented() -> None:
    pages = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("architecture.md", "kernels.md"))
    packages = [f"`{path.parent.name}/`" for path in PACKAGE.glob("*/__init__.py")]
    sources = [f"{path.name}`" for path in (PACKAGE / "csrc").iterdir()]
    assert [name for name in packages + sources if name not in pages] == []
