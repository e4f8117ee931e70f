"""Claims of the README, the package metadata and `--help` agree, are complete and name their conditions."""

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


def test_the_readme_states_that_gpu_kernels_have_not_run_on_hardware() -> None:
    first_screen = README.split("## Install")[0]
    assert "not yet run on a GPU" in first_screen
    assert "dense PyTorch implementation" in first_screen


def test_accuracies_and_scores_carry_seeds_and_conditions() -> None:
    sorting = README.split("## Beyond the training length")[1].split("##")[0]
    for condition in ("two seeds", "With NAPE positions", "with rotary positions the order is reversed", "whole sequence"):
        assert condition in sorting
    multi30k = next(block for block in README.split("\n\n") if block.startswith("Multi30k"))
    assert "one seed" in multi30k
    assert "no difference" in multi30k


def test_every_figure_of_the_readme_names_its_command() -> None:
    for section in ("## How fast", "## Beyond the training length"):
        text = README.split(section)[1].split("\n## ")[0]
        assert re.search(r"`entformer (bench|longctx) ", text), section
    speed = README.split("## How fast")[1].split("\n## ")[0].split("\n\n")
    for block in speed:
        if re.search(r"\d\.\d", block) and not block.startswith("|"):
            assert re.search(r"`(entformer|python benchmarks/)[^`]+`|the same command", block), block


def test_the_docs_give_the_base_of_diversity_and_the_rows_left_out() -> None:
    analysis = (ROOT / "docs" / "analysis.md").read_text(encoding="utf-8")
    rows = dict(line.strip("| ").split(" | ", 1) for line in analysis.splitlines() if line.startswith("| "))
    assert "/ ln n_i" in rows["diversity, base: keys"]
    assert "ln (number of heads)" in rows["diversity, base: heads"]
    assert "n_i > 1" in rows["positional confidence"]
    assert "initial" in analysis.lower()


def test_every_normalizer_is_in_the_table() -> None:
    table = (ROOT / "docs" / "normalizers.md").read_text(encoding="utf-8")
    for name, normalizer in NORMALIZERS.items():
        row = next((line for line in table.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1]), None)
        assert row is not None, name
        zeros, fused = (cell.strip() for cell in row.split("|")[3:5])
        assert (zeros in ("yes", f"`{name}`")) == normalizer.exact_zeros, name
        assert (fused == "yes") == (normalizer.kernel is not None), name
