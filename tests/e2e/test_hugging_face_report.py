"""The report on a Hugging Face model opens, whichever attention types the model has, without errors in the console."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from playwright.sync_api import Browser, expect

import entformer as ef
from entformer.analysis.hugging_face_report import hf_report_data

from .page_driver import choose_head, open_report

SIZES = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}


def fine_tuned(folder: Path, texts: list[list[int]]) -> Any:
    """A BERT classifier whose alphas were learned, loaded from the Trainer's checkpoint."""
    model = ef.hf.sparsify(t.BertForSequenceClassification(t.BertConfig(**SIZES)), init=1.5)
    options = {"max_steps": 2, "save_steps": 2, "learning_rate": 0.02, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    data = [{"input_ids": ids, "labels": number % 2} for number, ids in enumerate(texts)]
    trainer = t.Trainer(model, t.TrainingArguments(str(folder), **options), train_dataset=data)
    trainer.add_callback(ef.hf.SparsityCallback())
    trainer.train()
    return ef.hf.load(folder / "checkpoint-2")


def report(kind: str, folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    ids = torch.randint(5, 60, (4, 1, 14))
    if kind == "fine-tuned encoder":
        texts: list[Any] = [row[0].tolist() for row in ids]
        model: Any = fine_tuned(folder, texts)
        assert all((alphas != 1.5).all() for alphas in ef.hf.alphas(model).values())
        return hf_report_data(model, texts, name=f"a tiny {kind}", length=14)
    if kind == "decoder":
        model = t.LlamaForCausalLM(t.LlamaConfig(**SIZES, num_key_value_heads=2))
        texts = [ids.flatten().tolist()]
    else:
        model = t.T5ForConditionalGeneration(t.T5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4))
        texts = [{"input_ids": row, "decoder_input_ids": row[:, :9]} for row in ids]
    ef.hf.sparsify(model.eval(), alpha=1.5)
    return hf_report_data(model, texts, name=f"a tiny {kind}", length=14)


@pytest.mark.parametrize(
    ("kind", "head"), [("fine-tuned encoder", "encoder.1.2"), ("decoder", "decoder.1.2"), ("encoder-decoder", "cross.1.2")]
)
def test_it_opens_and_shows_every_head(kind: str, head: str, browser: Browser, tmp_path: Path) -> None:
    data = report(kind, tmp_path)
    for page in open_report(browser, tmp_path, data):
        expect(page.locator("h1")).to_contain_text(f"a tiny {kind}")
        choose_head(page, head)
        expect(page.locator(".measures div", has_text="Density").first.locator("dd")).to_contain_text("%")
