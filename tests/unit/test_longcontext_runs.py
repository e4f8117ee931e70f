"""Sweeps: one teacher-forced pass equals greedy decoding, runs go on where they stopped, results are whole and truthful."""

import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from entformer.cli import longctx
from entformer.errors import ArgumentError, DataError, RunFailed
from entformer.files import read_json, write_json
from entformer.longcontext.evaluate import evaluate, head_statistics
from entformer.longcontext.methods import METHODS, POSITIONS, get_method, get_positions
from entformer.longcontext.registry import get_task_config
from entformer.longcontext.results import markdown, read_results, sweep, table
from entformer.longcontext.tasks import IGNORE, make_task
from entformer.longcontext.theory import dispersion
from entformer.longcontext.train import LengthBatches, LengthRecipe, RunSpec, build, train_and_evaluate
from entformer.models.lm import CausalLM
from entformer.models.lm_config import LMConfig
from entformer.nn.normalizers import get_normalizer

TINY = replace(
    get_task_config("copy"),
    options={"alphabet": 4},
    train_length=6,
    eval_lengths=(6, 70),
    sequences=6,
    width=16,
    heads=4,
    hidden=16,
    steps=8,
    batch=8,
)


# ---- evaluation ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalizer", ["softmax", "asentmax"])
def test_one_pass_equals_greedy_decoding(normalizer: str) -> None:
    """On a model trained enough to be right on some sequences and wrong on others."""
    task = make_task("reverse", alphabet=3)
    torch.manual_seed(0)
    attention: Any = {"normalizer": normalizer}
    model = CausalLM(LMConfig(vocab_size=task.vocab_size, layers=1, heads=4, width=16, hidden=16, attention=attention))
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(120):
        sample = task.sample(32, 3, generator)
        loss = nn.functional.cross_entropy(model(sample.inputs).flatten(0, 1), sample.labels.flatten(), ignore_index=IGNORE)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    found = evaluate(model, task, 3, sequences=60, seed=4, heads=False)
    sample = task.sample(60, 3, torch.Generator().manual_seed(4))
    prompt, target = sample.inputs[:, :5], sample.labels[:, 4:]  # BOS and source and SEP; target and EOS
    said = model.generate(prompt, 4)
    greedy = (said == target).all(1).double().mean().item()
    assert found.exact_match == pytest.approx(greedy)
    assert 0.0 < greedy < 1.0
    assert found.token_accuracy >= found.exact_match


def test_observed_heads() -> None:
    task, model = build(replace(TINY, width=32, heads=8), RunSpec("asentmax", "nape", 0))
    model.eval()
    inputs = task.sample(2, 150, torch.Generator().manual_seed(0)).inputs
    heads = head_statistics(model, inputs)
    assert heads.keys == inputs.shape[1]
    assert heads.gamma == [[0.0] * 8] * 2
    assert heads.scale_p95 == pytest.approx(1.05)
    for layer in range(2):
        for head in range(8):
            assert 1.0 <= heads.support[layer][head] <= heads.keys
            assert 0.0 <= heads.entropy[layer][head] <= 1.0
            assert 1.0 / heads.keys <= heads.top[layer][head] <= 1.0
    dense = head_statistics(build(replace(TINY, width=32, heads=8), RunSpec("softmax", "nope", 0))[1].eval(), inputs)
    assert dense.beta is None
    assert min(map(min, dense.support)) > heads.keys - 64
    assert all(attention.hook is None for _, _, attention in model.attention_layers())  # type: ignore[operator, union-attr]


# ---- methods -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [*METHODS, "entmax-2", "topk-3", "asentmax-gamma2", "softmax-temperature-0.1", "rela-rms", "relu2-init", "gelu-none"],
)
def test_every_method_trains_on_tokens_and_on_items(method: str) -> None:
    for recipe in (
        replace(TINY, steps=2, eval_lengths=(9,)),
        replace(get_task_config("max-retrieval"), width=8, steps=2, batch=4, eval_lengths=(20,), sequences=4),
    ):
        if recipe.task == "max-retrieval" and get_normalizer(get_method(method).normalizer).uses_positions:
            with pytest.raises(ArgumentError, match="requires ordered keys"):
                build(recipe, RunSpec(method, "nape", 0))
            continue
        run, _ = train_and_evaluate(recipe, RunSpec(method, "nape", 0))
        assert math.isfinite(run.loss)
        assert len(run.lengths) == 1


@pytest.mark.parametrize("positions", [*POSITIONS, "rope-500000", "nape-0.25"])
def test_all_positions_train(positions: str) -> None:
    run, _ = train_and_evaluate(replace(TINY, steps=2, eval_lengths=(9,)), RunSpec("asentmax", positions, 0))
    assert math.isfinite(run.loss)


def test_names_are_read() -> None:
    assert get_method("entmax-2").alpha == 2.0
    assert get_method("topk-5").options == {"k": 5}
    assert get_method("softmax-temperature-0.0004").temperature == 0.0004
    assert (get_method("leaky-relu-rms").normalizer, get_method("leaky-relu-rms").output_norm) == ("leaky_relu", "rms")
    assert get_method("softmax-init").output_norm == "init"
    assert get_method("asentmax-gamma2").scaling_gamma == 2.0
    assert get_method("adaptive_temperature").normalizer == "adaptive_temperature"
    assert get_positions("rope-5e5")["rotary_base"] == 5e5
    for name in ("entmax-0.5", "hardmax", "topk-0", "no_module_here:X", "softmax-temperature-0", "entmax-rms"):
        with pytest.raises(ArgumentError):
            get_method(name)
    for name in ("rope-1", "nape-2", "learned"):
        with pytest.raises(ArgumentError):
            get_positions(name)


# ---- runs ----------------------------------------------------------------------------------------------------------------


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def stop_at(last: int) -> Callable[[int, int, float], None]:
    """Interrupts training as Ctrl-C does."""
    return lambda step, *_: os.kill(os.getpid(), signal.SIGINT) if step == last else None


def test_a_stopped_run_ends_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    spec = RunSpec("entmax-learned", "nape", 3)
    straight, expected = train_and_evaluate(TINY, spec)
    with pytest.raises(RunFailed, match=r"stopped at step 5 \(Ctrl-C\)"):
        train_and_evaluate(TINY, spec, tmp_path, stop_at(5))
    torch.manual_seed(99)
    torch.rand(7)
    resumed, found = train_and_evaluate(TINY, spec, tmp_path)
    assert torch.equal(weights(found), weights(expected))
    assert resumed.loss == straight.loss
    assert [at.token_accuracy for at in resumed.lengths] == [at.token_accuracy for at in straight.lengths]
    again, kept = train_and_evaluate(replace(TINY, eval_lengths=(9,)), spec, tmp_path)  # nothing is trained again
    assert torch.equal(weights(kept), weights(expected))
    assert (again.steps, [at.length for at in again.lengths]) == (8, [9])
    with pytest.raises(ArgumentError, match=r"began with another recipe: .*length\.lr"):
        train_and_evaluate(replace(TINY, lr=0.5), spec, tmp_path)


def test_batches_are_a_function_of_seed_and_index() -> None:
    recipe = LengthRecipe.make(TINY, RunSpec("softmax", "nape", 5), 8, "cpu")
    source = LengthBatches(make_task("copy", alphabet=4), recipe)
    straight, later = list(source.epoch(0)), list(source.epoch(0, 5))
    assert [torch.equal(a.inputs, b.inputs) for a, b in zip(straight[5:], later, strict=True)] == [True] * 3
    assert len({batch.inputs.numpy().tobytes() for batch in straight}) == 8
    halves = [LengthBatches(source.task, recipe, rank, 2) for rank in (0, 1)]
    both = [next(half.epoch(0, 1)).inputs for half in halves]
    assert torch.equal(both[1], straight[3].inputs)
    assert torch.equal(both[0], straight[2].inputs)


def test_a_time_budget_ends(tmp_path: Path) -> None:
    run, _ = train_and_evaluate(replace(TINY, seconds=0.05), RunSpec("softmax", "nape", 0))
    assert 21 <= run.steps < 2000


def test_a_run_that_diverges_is_told_and_counts_as_zero(tmp_path: Path) -> None:
    recipe = replace(TINY, lr=1e30, warmup=0)
    records = sweep(recipe, [RunSpec("softmax", "nape", 0)], tmp_path)
    assert all(record["diverged"] for record in records)
    assert [record["token_accuracy"] for record in records] == [0.0, 0.0]


def test_a_sweep_is_kept_and_grows(tmp_path: Path) -> None:
    told: list[str] = []
    specs = [RunSpec(method, "nape", seed) for seed in (0, 1) for method in ("softmax", "asentmax")]
    sweep(TINY, specs[:3], tmp_path, lambda who, what: told.append(f"{who.name} {what}"))
    records = sweep(TINY, specs, tmp_path, lambda who, what: told.append(f"{who.name} {what}"))
    assert len(told) == 7
    assert sum("finished before" in line for line in told) == 3
    assert len(records) == 4 * 2
    assert read_results(tmp_path / "results.jsonl") == json.loads(json.dumps(records))
    cells = table(records)
    assert set(cells) == {("softmax", "nape"), ("asentmax", "nape")}
    assert all(cell.seeds == 2 for row in cells.values() for cell in row.values())
    assert "| asentmax | nape |" in markdown(records)
    assert "±" in markdown(records)
    with pytest.raises(DataError, match=r"other settings \(steps\)"):
        sweep(replace(TINY, steps=9), specs[:1], tmp_path)
    (tmp_path / "results.jsonl").write_text("{}\nno\n")
    with pytest.raises(DataError, match=r"results\.jsonl:2"):
        read_results(tmp_path / "results.jsonl")


def test_results_of_before_the_published_settings_are_kept(tmp_path: Path) -> None:
    """A run.json that lacks later settings was made with what they are by default."""
    spec, told = RunSpec("softmax", "nape", 0), []
    sweep(TINY, [spec], tmp_path)
    path = tmp_path / "runs" / spec.name / "run.json"
    held = read_json(path)
    for name in ("warmup_share", "init_std", "mixed_lengths", "validate_at", "validate_every", "precision", "size"):
        del held["recipe"][name]
    write_json(path, held)
    sweep(TINY, [spec], tmp_path, lambda _, what: told.append(what))
    assert told == ["was finished before"]


# ---- the command line ----------------------------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {
    "methods": "softmax, asentmax",
    "positions": "nape",
    "seeds": "1",
    "eval_lengths": "6..24",
    "budget": None,
    "size": "laptop",
    "options": ["alphabet=4"],
    **{"train_length": 6, "steps": 3, "sequences": 4, "batch": 4, "width": 16},
    "threads": 1,
    "as_json": False,
}


def test_the_command_writes_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    longctx.run_task("copy", **PLAIN, out=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "results.jsonl", "table.md", "curves.png", "scaling.png"}
    assert "asentmax" in capsys.readouterr().out
    assert {record["length"] for record in read_results(tmp_path / "results.jsonl")} == {6, 12, 24}
    longctx.run_task("copy", **PLAIN | {"as_json": True}, out=tmp_path)  # nothing is trained again
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["length"] for line in lines] == [6, 12, 24] * 2


def test_the_published_size_runs_from_the_command_line(tmp_path: Path) -> None:
    tiny = {"size": "paper", "methods": "asentmax", "heads": 4, "layers": 1, "hidden": 16, "precision": "float32"}
    longctx.run_task("copy", **PLAIN | tiny, out=tmp_path)
    [path] = (tmp_path / "runs").glob("*/run.json")
    held = read_json(path)
    assert (held["recipe"]["size"], held["recipe"]["init_std"], held["chosen"]) == ("paper", 0.02, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"methods": ","}, "--methods is empty"),
        ({"methods": "hardmax"}, "unknown method 'hardmax'"),
        ({"positions": "polar"}, "unknown positions 'polar'"),
        ({"seeds": "0"}, "--seeds"),
        ({"seeds": "three"}, "--seeds"),
        ({"eval_lengths": "64..32"}, "--eval-lengths"),
        ({"budget": "10 minutes", "steps": None}, "--budget"),
        ({"budget": "10m"}, "not both"),
        ({"options": ["alphabet"]}, "--option"),
        ({"options": ["color=3"]}, "no option 'color'"),
        ({"size": "giant"}, "'giant'"),
        ({"device": "tpu"}, "no device 'tpu'"),
        ({"device": "cuda:99"}, "not available"),
        ({"validate_every": 5}, "--validate-every: with size laptop"),
    ],
)
def test_invalid_arguments_raise_before_any_training(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        longctx.run_task("copy", **PLAIN | change, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_shortest_training_length_is_tried_too(tmp_path: Path) -> None:
    """MQMTAR of 12 places has a pair, of 6 none: half the training length would fail in the middle of training."""
    with pytest.raises(ArgumentError, match="of length 6 has 0 pairs"):
        longctx.run_task("mqmtar", **PLAIN | {"size": "paper", "options": [], "train_length": 12}, out=tmp_path / "out")


def test_seeds_lengths_and_times_are_read() -> None:
    assert longctx._parse_seeds("3") == [0, 1, 2]
    assert longctx._parse_seeds("4,") == [4]
    assert longctx._parse_seeds("5,1") == [1, 5]
    assert longctx._parse_lengths("64..300,96") == (64, 96, 128, 256)
    assert longctx._parse_seconds("1.5m") == 90.0


def test_explanations_and_theory(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    longctx.explain()
    said = capsys.readouterr().out
    for name in (*METHODS, *POSITIONS, "max-retrieval", "BOS 7 3 3 1 SEP"):
        assert name in said
    monkeypatch.setattr("entformer.longcontext.theory.dispersion", lambda: dispersion((16, 256)))
    longctx.theory(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"theory.png", "theory.json"}
