"""`--size paper` is the published set-up: every figure of it that is known, without training; and what the size brings."""

import math
import os
import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from entformer.checkpoint.weights import read_tensors, tensors_of
from entformer.cli import longctx
from entformer.errors import RunFailed
from entformer.files import read_json, write_json
from entformer.longcontext import train as training
from entformer.longcontext.evaluate import LengthResult
from entformer.longcontext.methods import get_method
from entformer.longcontext.registry import TaskConfig, get_task_config, make_command
from entformer.longcontext.results import sweep
from entformer.longcontext.tasks import IGNORE, PAD, make_task, mixed
from entformer.longcontext.train import LengthBatches, LengthRecipe, RunSpec, build, select_device, train_and_evaluate
from entformer.models.lm import CausalLM
from entformer.training.loop import Trainer
from entformer.training.schedule import rate

# Vasylenko et al. (2025) and the authors' code: layers, width, heads, feed-forward size, updates, peak rate, warm-up.
PUBLISHED = {
    "mqmtar": (4, 512, 16, 1024, 390_625, 2e-4, 20_000),
    "sort": (2, 256, 8, 1024, 312_500, 4e-4, 20_000),
    "copy": (2, 256, 16, 1024, 156_250, 1e-3, 20_000),
    "reverse": (6, 256, 8, 1024, 234_375, 4e-4, 20_000),
    "flip-flop": (4, 256, 8, 512, 78_125, None, 10_000),  # no published rate
}
TASK_OPTIONS = {
    "mqmtar": {"letters": 256, "key_letters": 2, "value_letters": 2, "queries": 4, "density": 0.8, "words": 10_000},
    "sort": {"alphabet": 32},
    "copy": {"alphabet": 32},
    "reverse": {"alphabet": 32},
    "flip-flop": {"write": 0.1},
    "local-count": {"alphabet": 16, "max_repeats": 48},
    "n-back": {"alphabet": 16, "steps": 2},
}
SEQUENCES = {"mqmtar": 50_000_000, "sort": 40_000_000, "copy": 20_000_000, "reverse": 30_000_000}  # one epoch
SEQUENCES |= dict.fromkeys(("flip-flop", "local-count", "n-back"), 10_000_000)


def small(task: str = "copy", **changes: Any) -> TaskConfig:
    """The published set-up of a task with a model and a run that take no time."""
    tiny = {"width": 16, "heads": 4, "layers": 1, "hidden": 16, "batch": 6, "sequences": 6, "steps": 6}
    return replace(get_task_config(task, "paper"), **{**tiny, "eval_lengths": (64,), "train_length": 24, **changes})


def trainer_of(recipe: TaskConfig, folder: Path, method: str = "asentmax") -> Trainer:
    made: list[Trainer] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "run", lambda self, _: made.append(self))
        spec = RunSpec(method, "nape", 0)
        training._train(LengthRecipe.make(recipe, spec, recipe.steps, "cpu"), folder, None)
    return made[0]


# ---- the figures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", PUBLISHED)
def test_model_and_schedule(task: str) -> None:
    recipe = get_task_config(task, "paper")
    layers, width, heads, hidden, steps, lr, warmup = PUBLISHED[task]
    assert (recipe.layers, recipe.width, recipe.heads, recipe.hidden) == (layers, width, heads, hidden)
    assert (recipe.steps, recipe.warmup, recipe.batch, recipe.weight_decay) == (steps, warmup, 128, 0.0)
    assert lr is None or recipe.lr == lr
    assert recipe.precision == "bfloat16"


@pytest.mark.parametrize("task", TASK_OPTIONS)
def test_task_and_lengths(task: str) -> None:
    recipe = get_task_config(task, "paper")
    made = asdict(make_task(task, **recipe.options))
    assert {name: made[name] for name in TASK_OPTIONS[task]} == TASK_OPTIONS[task]
    assert recipe.train_length == (128 if task == "local-count" else 64)
    assert recipe.steps * recipe.batch == SEQUENCES[task]  # one epoch
    longest = 65_536 if task == "mqmtar" else 4096
    doubled = {64 << power for power in range(20) if 64 << power <= longest}
    assert set(recipe.lengths) == doubled | ({96} if task == "reverse" else set())
    assert recipe.sequences == 1000
    assert recipe.validate_at == (256 if task == "sort" else 512)  # 4 times and 8 times 64


@pytest.mark.parametrize("task", ["mqmtar", "copy"])
def test_start_of_the_published_model(task: str) -> None:
    """Embeddings N(0, 0.02^2) times sqrt(D), all matrices N(0, 0.02^2), gains 1, no biases but ASEntmax's."""
    recipe = get_task_config(task, "paper")
    _, model = build(recipe, RunSpec("asentmax", "nape", 0))
    assert isinstance(model, CausalLM)
    assert not model.config.tied_output
    assert model.config.scaled_embedding
    assert model.config.embedding_std == pytest.approx(0.02 * math.sqrt(recipe.width))
    for name, value in model.named_parameters():
        if name.endswith("bias"):
            assert name.split(".")[-2] in ("beta", "gamma"), name
            assert not value.any(), name
        elif value.dim() == 2:
            assert value.std().item() == pytest.approx(0.02, rel=0.06), name  # 4,096 draws at least: 5 standard errors
        else:
            assert (value == 1.0).all(), name
    attention = next(model.attention_layers())[2]
    slopes = attention.slopes
    assert slopes is not None
    half = recipe.heads // 2
    assert slopes.tolist() == pytest.approx([1.0 / head for head in range(1, half + 1)] + [0.0] * half)
    assert attention.alpha == 1.5
    assert (attention.scaling.delta, attention.scaling.rho) == (1.0, 2.0)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("method", "published", "init"),
    [
        ("asentmax", True, "paper"),
        ("entmax-per-head", True, "paper"),
        ("asentmax-identity", True, "identity"),
        ("asentmax", False, None),
        ("ssmax", True, None),  # 1, as published, at every size
    ],
)
def test_published_initialization(method: str, published: bool, init: str | None) -> None:
    assert get_method(method, published=published).scaling_init == init


def test_warm_up_is_not_cut_and_the_cosine_ends_at_zero() -> None:
    spec = RunSpec("asentmax", "nape", 0)
    config = LengthRecipe.make(small(warmup=20_000), spec, 156_250, "cpu").training
    for step, expected in ((1, 1 / 20_000), (15_625, 15_625 / 20_000), (20_000, 1.0), (156_250, 0.0)):
        assert rate(config, step) == pytest.approx(expected * config.lr, abs=1e-9)
    assert rate(config, 20_000 + (156_250 - 20_000) // 2) == pytest.approx(0.5 * config.lr)
    laptop = LengthRecipe.make(replace(small(), warmup_share=0.1, warmup=300), spec, 1000, "cpu").training
    assert rate(laptop, 100) == laptop.lr  # its own limit: a tenth


def test_optimizer(tmp_path: Path) -> None:
    """AdamW (0.9, 0.99), no weight decay, gradient norm at most 1; with weight decay, all but the alphas have it."""
    trainer = trainer_of(small(), tmp_path / "copy")
    assert isinstance(trainer.updater.optimizer, torch.optim.AdamW)
    assert {(group["betas"], group["eps"], group["weight_decay"]) for group in trainer.updater.optimizer.param_groups} == {
        ((0.9, 0.99), 1e-8, 0.0)
    }
    assert trainer.config.clip == 1.0
    items = trainer_of(replace(get_task_config("max-retrieval"), width=8, batch=4), tmp_path / "items", "entmax-learned")
    decay = {group["name"]: group["weight_decay"] for group in items.updater.optimizer.param_groups}
    assert decay == {"decay": 1e-4, "alpha": 0.0}


# ---- lengths in a batch ----------------------------------------------------------------------------------------------------


def test_each_sequence_has_its_own_length(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[torch.Tensor] = []
    monkeypatch.setattr(training, "mixed", lambda task, n, generator: drawn.append(n) or mixed(task, n, generator))
    recipe = LengthRecipe.make(small(train_length=64, batch=128), RunSpec("softmax", "nape", 0), 3, "cpu")
    list(LengthBatches(make_task("copy"), recipe).epoch(0))
    lengths = torch.cat(drawn)
    assert (lengths.min(), lengths.max()) == (32, 64)  # 48 +- 16
    assert all(len(n.unique()) > 20 for n in drawn)


@pytest.mark.parametrize("name", ["copy", "mqmtar", "local-count", "flip-flop"])
@torch.no_grad()
def test_padding_on_the_right_changes_nothing(name: str) -> None:
    """A causal model says of each sequence of a mixed batch what it says of the sequence alone."""
    task = make_task(name)
    lengths = torch.tensor([40, 33, 64, 33])
    sample = mixed(task, lengths, torch.Generator().manual_seed(0))
    _, model = build(small(name), RunSpec("asentmax", "nape", 0))
    together = model.eval()(sample.inputs)
    for row in range(4):
        real = sample.inputs[row] != task.data_tokens + PAD
        assert (sample.labels[row][~real] == IGNORE).all()
        assert (sample.labels[row] != IGNORE).any()
        alone = model(sample.inputs[row][real][None])[0]
        torch.testing.assert_close(together[row][real], alone, rtol=0.0, atol=1e-4)  # float32, logits of order 0.1 to 1


# ---- the choice of a checkpoint --------------------------------------------------------------------------------------------


def scored(monkeypatch: pytest.MonkeyPatch, scores: list[tuple[float, float]]) -> list[tuple[str, int, int]]:
    """Validations give these (exact match, token accuracy); out: split, length and seed of every evaluation."""
    asked: list[tuple[str, int, int]] = []
    given = iter(scores)

    def evaluate(model: nn.Module, task: Any, length: int, *, sequences: int, seed: int, heads: bool = True) -> LengthResult:
        asked.append((task.split, length, seed))
        exact, right = next(given) if task.split == "validation" else (0.0, 0.0)
        return LengthResult(length, sequences, exact, right)

    monkeypatch.setattr(training, "evaluate", evaluate)
    return asked


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ([(0.1, 0.9), (0.5, 0.6), (0.5, 0.5)], 4),
        ([(0.0, 0.2), (0.0, 0.3), (0.0, 0.4)], 6),  # exact match says nothing yet
        ([(0.4, 0.2), (0.4, 0.2), (0.1, 0.9)], 2),
    ],
)
def test_the_best_validation_is_evaluated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scores: Any, chosen: int) -> None:
    recipe = small("mqmtar", validate_every=2)
    asked = scored(monkeypatch, scores)
    run, found = train_and_evaluate(recipe, RunSpec("softmax", "nape", 0), tmp_path)
    assert run.chosen == chosen
    assert [(split, length) for split, length, _ in asked] == [("validation", 512)] * 3 + [("evaluation", 64)]
    stored = read_tensors(tmp_path / "checkpoints" / f"step-{chosen:08d}" / "model.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in tensors_of(found).items())


def test_a_stopped_run_remembers_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, spec = small("mqmtar", validate_every=2), RunSpec("entmax", "nape", 1)
    scores = [(0.3, 0.1), (0.1, 0.1), (0.2, 0.1)]
    scored(monkeypatch, scores)
    straight, expected = train_and_evaluate(recipe, spec)
    scored(monkeypatch, scores[:1])

    def stop(step: int, *_: object) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(RunFailed, match="stopped at step 3"):
        train_and_evaluate(recipe, spec, tmp_path, stop)
    scored(monkeypatch, scores[1:])
    resumed, found = train_and_evaluate(recipe, spec, tmp_path)
    assert straight.chosen == resumed.chosen == 2
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), expected.parameters(), strict=True))


# ---- device, precision, command --------------------------------------------------------------------------------------------


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert select_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert select_device("auto") == torch.device("cuda")
    assert select_device("cuda:1") == torch.device("cuda", 1)


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_weights(tmp_path: Path) -> None:
    trainer = trainer_of(small(precision="bfloat16"), tmp_path, "softmax")
    seen: list[torch.dtype] = []
    trainer.model.layers[0].feed_forward.register_forward_hook(lambda _m, _i, out: seen.append(out.dtype))
    batch = next(iter(trainer.batches.epoch(0)))
    sums = trainer.updater._gradients([batch], batch.num_labels)
    assert sums.isfinite().all()
    assert seen == [torch.bfloat16]
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in trainer.model.parameters())


def test_the_command_names_the_size() -> None:
    recipe = replace(get_task_config("copy", "paper"), steps=100)
    said = make_command(recipe, methods=["asentmax"], positions=["nape"], seeds=[0])
    assert said == "entformer longctx copy --methods asentmax --positions nape --size paper --seeds 1 --steps 100"
    assert "--size" not in make_command(get_task_config("copy"), methods=["softmax"], positions=["nape"], seeds=[0])


def test_the_size_runs_from_the_command_line(tmp_path: Path) -> None:
    changes = {"steps": 2, "width": 16, "heads": 4, "layers": 1, "hidden": 16, "batch": 4, "sequences": 2, "train_length": 8}
    longctx.run_task(
        "copy",
        methods="asentmax",
        positions="nape",
        seeds="1",
        eval_lengths="8",
        budget=None,
        size="paper",
        options=[],
        **{**changes, "precision": "float32"},
        threads=1,
        device="cpu",
        out=tmp_path,
        as_json=False,
    )
    [path] = (tmp_path / "runs").glob("*/run.json")
    held = read_json(path)
    assert (held["recipe"]["size"], held["recipe"]["init_std"], held["chosen"]) == ("paper", 0.02, 2)


def test_results_of_before_these_settings_are_kept(tmp_path: Path) -> None:
    """A run.json that lacks the new settings was made with what they are by default."""
    recipe = replace(get_task_config("copy"), options={"alphabet": 4}, train_length=6, eval_lengths=(6,), sequences=2, steps=2)
    recipe = replace(recipe, width=16, heads=4, hidden=16, batch=4)
    spec = RunSpec("softmax", "nape", 0)
    sweep(recipe, [spec], tmp_path)
    path = tmp_path / "runs" / spec.name / "run.json"
    held = read_json(path)
    for name in ("warmup_share", "init_std", "mixed_lengths", "validate_at", "validate_every", "precision", "size"):
        del held["recipe"][name]
    write_json(path, held)
    told: list[str] = []
    sweep(recipe, [spec], tmp_path, lambda _, what: told.append(what))
    assert told == ["was finished before"]
