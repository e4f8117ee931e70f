"""Claims of the README, the package metadata and `--help` agree, and the table of normalizers is complete."""

import re
import tomllib
from pathlib import Path

import entformer
from entformer.nn.normalizers import NORMALIZERS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["description"]
COMMAND_LINE = (ROOT / "src" / "entformer" / "cli" / "main.py").read_text(encoding="utf-8")


def test_one_tagline_without_a_speed_claim() -> None:
    (in_help,) = re.findall(r'(?:help=|""")"?(Adaptively[^"]+)"', COMMAND_LINE)
    taglines = [METADATA, (entformer.__doc__ or "").splitlines()[0], in_help]
    for line in [*taglines, README.split("\n\n")[1].replace("\n", " ")]:
        assert "Adaptively sparse attention for PyTorch" in line
        assert not re.search(r"fast|speed", line)


def test_every_normalizer_is_in_the_table() -> None:
    table = README.split("## Normalizers")[1].split("\n## ")[0]
    for name, normalizer in NORMALIZERS.items():
        row = next((line for line in table.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1]), None)
        assert row is not None, name
        zeros, fused = (cell.strip() for cell in row.split("|")[3:5])
        assert (zeros in ("yes", f"`{name}`")) == normalizer.exact_zeros, name
        assert (fused == "yes") == (normalizer.kernel is not None), name
