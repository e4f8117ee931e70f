"""The Python examples of the documentation run as they are written, given the runs, models and arrays that they speak of."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from tests.architecture.test_doc_code import DOCS, blocks

import entformer as ef


def run_examples(page: str, given: dict[str, Any] | None = None, change: tuple[str, str] = ("", "")) -> dict[str, Any]:
    """Runs the Python blocks of a page one after the other; returns their names."""
    names = dict(given or {})
    for block in blocks((DOCS / page).read_text(encoding="utf-8"), "python"):
        if ">>>" not in block:
            exec(block.replace(*change), names)
    return names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    return tmp_path


def test_analysis_and_explorer(here: Path, demo: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "runs" / "entmax").symlink_to(demo[0] / "entmax")
    (here / "prepared").symlink_to(demo[0] / "data")
    names = run_examples("analysis.md")
    assert 0 < min(names["table"].column("density")) <= 1
    assert (here / "cross-1.pdf").exists()
    served: list[Any] = []
    monkeypatch.setattr("uvicorn.run", served.append)
    run_examples("explore.md", names)
    assert len(served) == 1


def test_translation(here: Path, capsys: pytest.CaptureFixture[str], make_recipe: Callable[..., Path]) -> None:
    make_recipe("small").rename("small.yaml")
    run_examples("translation.md")
    assert capsys.readouterr().out
    assert (here / "runs" / "small" / "best.json").exists()


def test_hugging_face(here: Path, tiny_llama: Callable[..., tuple[Any, Any]]) -> None:
    model, tokenizer = tiny_llama(1)
    ef.hf.densify(model).save_pretrained(here / "model")
    tokenizer.save_pretrained(here / "model")
    trainer = MagicMock()
    given = {"path": str(here / "model"), "texts": ["the cat sat on the mat and the dog sat"] * 4, "Trainer": trainer}
    names = run_examples("huggingface.md", given, change=("model.generate(...)", "pass"))
    assert trainer.call_args.kwargs["callbacks"] == [names["callback"]]
    assert max(names["table"].column("density")) <= 1


def test_language_models(here: Path, make_lm: Callable[..., Any], save_lm: Callable[..., Path]) -> None:
    save_lm(make_lm(), here / "runs" / "lm-demo")
    assert len(run_examples("language-models.md")["table"].column("density")) == 4


def test_show_and_positions(here: Path) -> None:
    q, k, v = torch.randn(3, 1, 2, 4, 8).unbind()
    weights = torch.softmax(torch.randn(2, 4, 4), -1)
    output = SimpleNamespace(attentions=(weights,))
    given = {"q": q, "k": k, "v": v, "weights": weights, "tokens": list("abcd"), "batch": {}, "model": lambda **_: output}
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, batch_first=True), 1)
    names = run_examples("show.md", given | {"encoder": encoder, "x": torch.randn(3, 4, 16)})
    assert list(names["traces"]) == ["layers.0.self_attn"]
    assert (here / "heads.html").exists()
    model = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
    names = run_examples("long-context.md", {"model": model, "torch": torch})
    assert names["model"](torch.randn(1, 3, 16)).shape == (1, 3, 16)
    assert names["Squared"]()(torch.tensor([1.0, 2.0, -torch.inf])).tolist() == pytest.approx([0.2, 0.8, 0.0])
