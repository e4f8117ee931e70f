"""`entformer report --hf` writes a report on a saved Hugging Face model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

import entformer as ef
from entformer.analysis.hugging_face_report import hf_report_data
from entformer.cli.main import app

SIZES = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = "the cat sat on the mat and the dog sat on the cat " * 4


@pytest.fixture
def folder(tiny_llama: Callable[..., tuple[Any, Any]], tmp_path: Path) -> Path:
    """A converted Llama with a tokenizer of words."""
    for saved in tiny_llama():
        saved.save_pretrained(tmp_path / "model")
    return tmp_path


def test_a_report_on_a_saved_decoder(folder: Path) -> None:
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    arguments = ["report", "--hf", str(folder / "model"), "--text", str(folder / "text.txt"), "--length", "16", "--json"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(folder / "report.html")])
    assert done.exit_code == 0, done.output
    content = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    (run,) = content["runs"]
    assert len(run["heads"]) == 8
    assert {head["alpha"] for head in run["heads"]} == {1.5}
    assert run["heads"][0]["induction"] is not None
    sentence = run["sentences"][0]
    assert sentence["target"][0] in TEXT.split()
    assert len(sentence["heads"]["decoder.0.0"]["crow"]) == len(sentence["target"])
    assert "<script" in (folder / "report.html").read_text(encoding="utf-8")


class LargestTensor(TorchDispatchMode):
    """Records how many elements the largest result of an operator has."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for result in found if isinstance(found, tuple | list) else (found,):
            if isinstance(result, torch.Tensor) and result.dtype != torch.uint8:  # reserved memory: at most 512 bytes per row
                self.elements = max(self.elements, result.numel())
        return found


def test_a_text_of_2048_tokens_is_measured_without_matrices_of_its_square() -> None:
    torch.manual_seed(0)
    sizes = {**SIZES, "num_hidden_layers": 1, "max_position_embeddings": 2048}
    model = ef.hf.sparsify(t.LlamaForCausalLM(t.LlamaConfig(vocab_size=90, **sizes)).eval(), alpha=2.0)
    for _, heads in ef.hf.heads.sparse_heads(model):
        heads.set(scale=2000.0)  # a random model attends almost uniformly
    ids = torch.randint(3, 90, (1024,)).repeat(2).tolist()
    with LargestTensor() as largest:
        table = ef.analysis.collect(model, [ids], length=2048)
    assert table.target_tokens == 2048
    assert len(table) == 4
    assert all(row.induction is not None and 1.0 <= row.support < 400.0 for row in table)
    assert largest.elements < 2048 * 1024


def test_encoders_and_pairs_have_their_own_sides() -> None:
    torch.manual_seed(0)
    bert = ef.hf.sparsify(t.BertForMaskedLM(t.BertConfig(vocab_size=50, **SIZES)).eval(), alpha=1.5)
    run = hf_report_data(bert, [[5, 6, 7, 8], [9, 8, 7]], name="bert")["runs"][0]
    assert {head["attn_type"] for head in run["heads"]} == {"encoder"}
    assert run["sentences"][0]["target"] == []
    assert run["data"]["sentences"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give run directories, or --hf"),
        (["--hf", "x"], "--hf and --text"),
        (["--hf", "nowhere", "--text", "README.md"], "neither a directory nor"),
        (["--hf", "json:nothing", "--text", "README.md"], "cannot be called"),
    ],
)
def test_what_is_missing_is_named(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("text", encoding="utf-8")
    done = CliRunner().invoke(app, ["report", *arguments])
    assert done.exit_code != 0
    assert message in str(done.exception) + done.output
