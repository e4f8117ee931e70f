"""Fine-tuning with transformers' Trainer: alphas move, are logged, resumed, annealed and constrained; LoRA saves them."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t

from entformer import hf
from entformer.errors import ArgumentError

from .tiny_models import ENCODER, tiny

needs_accelerate = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="the Trainer needs accelerate")
needs_peft = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")


def classifier() -> Any:
    torch.manual_seed(0)
    return t.BertForSequenceClassification(t.BertConfig(**ENCODER, num_labels=2))


def examples(count: int = 64) -> list[dict[str, Any]]:
    """Sequences whose label is whether they contain token 5."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(6, 90, (count, 12), generator=generator)
    labels = torch.arange(count) % 2
    ids[labels == 1, 4] = 5
    return [{"input_ids": row.tolist(), "labels": int(label)} for row, label in zip(ids, labels, strict=True)]


def trainer(model: Any, folder: Path, callback: Any, **options: Any) -> Any:
    settings = {
        "max_steps": 12,
        "per_device_train_batch_size": 16,
        "learning_rate": 5e-3,
        "logging_steps": 4,
        "save_steps": 6,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 0,
        **options,
    }
    arguments = t.TrainingArguments(output_dir=str(folder), **settings)
    data = examples()
    return t.Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:16], callbacks=[callback])


@needs_accelerate
def test_loss_falls_and_alphas_move_are_logged_and_resumed(tmp_path: Path) -> None:
    model = hf.sparsify(classifier(), init=1.2)
    whole = trainer(model, tmp_path / "whole", hf.SparsityCallback(density=0.3, measure_every=2))
    whole.train()
    logged = [entry for entry in whole.state.log_history if "loss" in entry]
    assert logged[-1]["loss"] < logged[0]["loss"]
    assert {"alpha_mean", "alpha_min", "alpha_max", "scale_mean", "density", "density_price"} <= logged[-1].keys()
    values = torch.cat(list(hf.alphas(model).values()))
    assert (values != 1.2).all()
    assert values.min() >= 1.0
    assert values.max() <= 2.0

    again = hf.sparsify(classifier(), init=1.5)  # the checkpoint overwrites these alphas
    resumed = trainer(again, tmp_path / "whole", hf.SparsityCallback(density=0.3, measure_every=2))
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-6"))
    for name, own in hf.alphas(model).items():
        assert torch.allclose(hf.alphas(again)[name], own, atol=1e-6)
    loaded = hf.load(tmp_path / "whole" / "checkpoint-12")
    for name, own in hf.alphas(model).items():
        assert torch.equal(hf.alphas(loaded)[name], own)


@needs_accelerate
def test_a_schedule_starts_from_softmax_and_reaches_its_targets(tmp_path: Path) -> None:
    model = hf.sparsify(classifier(), alpha=1.6)
    for _, heads in hf.heads.sparse_heads(model):
        heads.set(scale=0.5)
    seen: list[tuple[float, float]] = []

    class Record(t.TrainerCallback):  # type: ignore[misc]
        def on_substep_end(self, *_: Any, **__: Any) -> None: ...

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append((float(next(iter(hf.alphas(model).values()))[0]), float(next(iter(hf.scales(model).values()))[0])))

    run = trainer(model, tmp_path, hf.SparsityCallback(schedule=hf.AlphaSchedule(4)), max_steps=6, save_strategy="no")
    run.add_callback(Record())
    run.train()
    assert [round(alpha, 4) for alpha, _ in seen] == [1.0, 1.15, 1.3, 1.45, 1.6, 1.6]
    assert seen[0][1] == pytest.approx(1.0)
    assert seen[2][1] == pytest.approx(0.5**0.5)
    assert seen[-1][1] == pytest.approx(0.5)


@needs_accelerate
def test_density_yields_to_the_loss(tmp_path: Path) -> None:
    callback = hf.SparsityCallback(density=0.2, max_loss_increase=0.01, reference_loss=1e-6, measure_every=1)
    options = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "no", "max_steps": 6}
    trainer(hf.sparsify(classifier()), tmp_path, callback, **options).train()
    assert callback.multiplier is not None
    assert callback.multiplier.held  # no evaluation was below the bound


def test_schedules() -> None:
    schedule = hf.AlphaSchedule(10, start=5, shape="cosine")
    assert [round(schedule.share(step), 3) for step in (0, 5, 10, 15, 99)] == [0.0, 0.0, 0.5, 1.0, 1.0]
    for wrong in ({"steps": 0}, {"steps": 5, "shape": "step"}, {"steps": 5, "start": -1}):
        with pytest.raises(ArgumentError):
            hf.AlphaSchedule(**wrong)
    for wrong in ({"density": 0.0}, {"max_loss_increase": 0.1}, {"density": 0.1, "measure_every": 0}):
        with pytest.raises(ArgumentError):
            hf.SparsityCallback(**wrong)


def test_a_dense_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match="sparsify"):
        hf.SparsityCallback().on_train_begin(None, t.TrainerState(), None, model=classifier())


DISTRIBUTED = """
import os, sys
from types import SimpleNamespace
import torch
import torch.distributed as dist
import transformers as t
from entformer import hf

rank = 0 if os.fork() else 1  # before anything has threads; transformers is imported once
torch.set_num_threads(1)
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
torch.manual_seed(0)
sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 20}
model = hf.sparsify(t.LlamaForCausalLM(t.LlamaConfig(**sizes)), init=1.3, layers=[1])
parallel = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(hf.parameter_groups(model, lr=0.01, alpha_lr=0.01))
callback = hf.SparsityCallback(density=0.3, measure_every=1)  # densities of the two processes differ
for parameter in model.parameters():
    if parameter.dim() > 1:
        parameter.data.mul_(30.0)
for step in range(3):  # a parameter without a gradient would fail the second
    state = SimpleNamespace(global_step=step)
    ids = torch.randint(20, (1, 9 + 4 * rank), generator=torch.Generator().manual_seed(2 * step + rank))
    optimizer.zero_grad()
    callback.on_step_begin(None, state, None, model=model)
    parallel(input_ids=ids, labels=ids).loss.backward()
    callback.on_pre_optimizer_step(None, state, None, model=model)
    optimizer.step()
assert 0.1 < callback.multiplier.density < 0.95, callback.multiplier
mine = torch.cat([*hf.alphas(model).values(), *hf.scales(model).values()])
both = [torch.empty_like(mine) for _ in range(2)]
dist.all_gather(both, mine)
assert torch.equal(*both)
assert (mine[:2] != 1.3).all() and (mine[2:] != 1.0).all()
dist.destroy_process_group()
if rank == 0:
    assert os.wait()[1] == 0
    print("equal")
"""


def test_two_processes_learn_the_same_alphas(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DISTRIBUTED, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "equal\n", done.stderr


@needs_peft
def test_lora_saves_alphas_among_its_modules(tmp_path: Path) -> None:
    import peft

    model = hf.sparsify(tiny("llama"), init=1.3)
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], modules_to_save=["entmax_norm"], r=2)
    adapted = peft.get_peft_model(model, config)
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=5.0)
    ids = torch.randint(3, 90, (2, 8), generator=torch.Generator().manual_seed(0))
    adapted(ids).logits.square().mean().backward()
    optimizer.step()
    moved = hf.alphas(adapted)
    assert len(moved) == 2
    assert all((values != 1.3).any() for values in moved.values())
    adapted.save_pretrained(tmp_path)
    base = hf.sparsify(tiny("llama"), init=1.3)
    again = peft.PeftModel.from_pretrained(base, str(tmp_path))
    with torch.no_grad():
        assert torch.allclose(again(ids).logits, adapted(ids).logits, atol=1e-6)
    assert [values.tolist() for values in hf.alphas(again).values()] == [values.tolist() for values in moved.values()]


@needs_peft
def test_converting_after_peft_warns_that_alphas_are_not_saved() -> None:
    import peft

    adapted = peft.get_peft_model(tiny("llama"), peft.LoraConfig(target_modules=["q_proj"], r=2))
    with pytest.warns(UserWarning, match="modules_to_save"):
        hf.sparsify(adapted)
    assert len(hf.alphas(adapted)) == 2
