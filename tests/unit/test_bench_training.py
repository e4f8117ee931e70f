"""The training benchmark: fair batches, models of one size, and a report that holds what it promises. Nothing is timed here."""

import json

import pytest
import torch

from entformer.bench import training_racers as racers
from entformer.bench.training import Plan, Setting, TrainingReport, TrainingResult, full_plan, quick_plan, race_training
from entformer.models.config import PRESETS
from entformer.text.subwords import BOS, EOS, PAD

SIZES = {"vocab_size": 50, **PRESETS["micro"]}
SETTING = Setting(name="short", mean=6.0, deviation=2.0, tokens=48, precision="bfloat16")


def test_batches_look_like_training() -> None:
    batches = racers.make_batches(600, 15.0, 5.0, 50)
    assert len(batches) == 3
    for batch in batches:
        assert 300 < batch.target_tokens < 1200
        rows = torch.arange(len(batch.examples))
        assert (batch.target[:, 0] == BOS).all()
        assert (batch.source[rows, batch.source_lengths - 1] == EOS).all()
        assert (batch.target[rows, batch.target_lengths] == EOS).all()
        assert int((batch.source != PAD).sum()) == int(batch.source_lengths.sum())
        assert int((batch.target != PAD).sum()) == batch.target_tokens + len(batch.examples)
    assert torch.equal(racers.make_batches(600, 15.0, 5.0, 50)[1].source, batches[1].source)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_all_have_one_size_and_start_alike() -> None:
    [batch, *_] = racers.make_batches(200, 8.0, 2.0, 50)
    counts, losses = {}, {}
    for name in racers.CONTESTANTS:
        if name == racers.MARIAN:
            pytest.importorskip("transformers")
        model, loss = racers.contestant(name, SIZES)
        counts[name] = sum(p.numel() for n, p in model.named_parameters() if "embed_positions" not in n)
        losses[name] = loss(batch).item() / batch.target_tokens
    assert max(counts.values()) < 1.05 * min(counts.values()), counts  # alphas, ReLA's norms; Marian stores its positions
    assert all(3.5 < loss < 7.0 for loss in losses.values()), losses  # ln 50 = 3.9; tied embeddings first expect a copy


def test_a_step_trains() -> None:
    batches = racers.make_batches(100, 6.0, 2.0, 50)
    step = racers.training_step("learned", SIZES, batches, narrow=False)
    before = torch.get_rng_state()
    losses = [step().item() for _ in range(4)]  # type: ignore[attr-defined]
    torch.set_rng_state(before)
    assert all(loss > 0.0 for loss in losses)


def test_report() -> None:
    names = ("softmax sdpa", "softmax", "entmax15")
    plan = Plan(settings=(SETTING,), contestants=names, preset="micro", vocab_size=50, rounds=2, close_rounds=1)
    said: list[str] = []
    report = race_training(plan, progress=said.append)
    assert said == ["1 of 1: short sentences, bfloat16"]
    assert tuple(r.contestant for r in report.results) == names
    assert [r.rounds for r in report.results] == [3, 2, 3]
    assert report.results[0].speed == 1.0
    assert all(r.tokens_per_second > 0 for r in report.results)
    assert json.loads(json.dumps(report.as_dict()))["benchmark"] == "training"
    assert [bar.what for bar in report.bars()] == ["entmax15 / softmax with SDPA"]


def test_bars_take_the_worst_setting() -> None:
    def result(name: str, speed: float, setting: Setting) -> TrainingResult:
        return TrainingResult(
            setting=setting, contestant=name, tokens_per_second=1.0, speed=speed, speed_low=speed, speed_high=speed, rounds=1
        )

    plan = quick_plan()
    first, second = plan.settings
    report = race_training(Plan(settings=()))
    results = [result("learned", 0.9, first), result("learned", 1.2, second), result("Marian", 0.6, first)]
    report = TrainingReport(signature=report.signature, transformers=None, plan=plan, results=tuple(results))
    found = {bar.what: (bar.measured, bar.met) for bar in report.bars()}
    assert found["learned / softmax with SDPA"] == (0.9, False)
    assert found["learned / Marian"] == (0.9 / 0.6, True)


def test_plans() -> None:
    assert {setting.precision for setting in full_plan().settings} == {"float32", "bfloat16"}
    assert quick_plan(2).threads == 2
