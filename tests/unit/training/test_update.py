"""One update: the same gradient however batches are cut; no memory means halves; NaN never reaches the weights."""

import pytest
import torch

from entformer.data.batch import Batch
from entformer.data.batching import collate
from entformer.data.store import TokenStore
from entformer.errors import RunFailed
from entformer.models.config import Seq2SeqConfig
from entformer.models.fused_loss import LossSums
from entformer.models.seq2seq import Seq2Seq
from entformer.training.engine import Engine
from entformer.training.optim import make_optimizer, optimizer_tensors
from entformer.training.precision import precision_here
from entformer.training.ranks import Ranks
from entformer.training.recipe import TrainingConfig
from entformer.training.update import Updater

EXAMPLES = [([5, 6, 7], [8, 9]), ([6], [7, 7, 7, 7]), ([9, 8, 7, 6, 5], [5]), ([5], [6])]


def batch_of(*which: int) -> Batch:
    import numpy as np

    return collate(TokenStore.from_examples(EXAMPLES), np.array(which))


def make(
    dropout: float = 0.0, model: dict[str, object] | None = None, **training: object
) -> tuple[Seq2Seq, Updater, list[str]]:
    torch.manual_seed(3)
    sizes = {"vocab_size": 12, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "width": 8, "hidden": 16}
    made = Seq2Seq(Seq2SeqConfig.from_dict({**sizes, "dropout": dropout, **(model or {})})).train()
    config = TrainingConfig.model_validate(training)
    said: list[str] = []
    engine = Engine(made, lambda model, batch: model.loss(batch), Ranks("cpu"))
    return made, Updater(engine, make_optimizer(made, config), config, said.append), said


def gradients(model: Seq2Seq) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_gradient_does_not_depend_on_how_the_batch_is_cut() -> None:
    results = []
    for cut in ([batch_of(0, 1, 2, 3)], [batch_of(0, 2), batch_of(1, 3)], [batch_of(i) for i in range(4)]):
        model, updater, _ = make()
        tokens = sum(batch.num_labels for batch in cut)
        sums = updater._gradients(cut, tokens)
        results.append((gradients(model), sums))
    for found, sums in results[1:]:
        torch.testing.assert_close(sums, results[0][1], rtol=1e-5, atol=1e-5)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, results[0][0][name], rtol=1e-4, atol=1e-6)


def test_halves_hold_the_same_pairs_without_needless_padding() -> None:
    first, second = batch_of(0, 3, 1, 2).split()
    assert (first.examples, second.examples) == ((0, 3), (1, 2))
    assert (tuple(first.source.shape), tuple(first.target.shape)) == ((2, 4), (2, 4))
    assert (tuple(second.source.shape), tuple(second.target.shape)) == ((2, 6), (2, 6))
    assert second.target[1].tolist() == [2, 5, 3, 0, 0, 0]


def test_a_batch_that_does_not_fit_into_memory_is_trained_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    reference, reference_updater, _ = make()
    tokens = batch_of(0, 1, 2, 3).num_labels
    reference_updater._gradients([batch_of(0, 1, 2, 3)], tokens)
    model, updater, said = make()
    asked: list[int] = []
    real_loss = model.loss

    def loss(batch: Batch) -> LossSums:
        asked.append(len(batch.examples))
        found = real_loss(batch)
        if len(batch.examples) > 2:
            found.loss.backward(retain_graph=True)  # gradients of the attempt that failed must not stay
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory")
        return found

    monkeypatch.setattr(model, "loss", loss)
    updater._gradients([batch_of(0, 1, 2, 3)], tokens)
    updater._gradients([batch_of(0, 1, 2, 3)], tokens)
    assert asked == [4, 2, 2, 4, 2, 2]
    assert len(said) == 1  # told once
    assert "did not fit into memory" in said[0]
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, gradients(reference)[name], rtol=1e-4, atol=1e-6)


def test_one_pair_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, updater, _ = make()

    def loss(batch: Batch) -> LossSums:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(model, "loss", loss)
    with pytest.raises(RunFailed, match=r"training example 2 alone \(6 source and 3 target tokens\) does not fit into memory"):
        updater.update([batch_of(2)], tokens=2, step=1, rate=0.1)


def test_nan_stops_before_the_weights_and_names_step_examples_rate_and_norm() -> None:
    model, updater, _ = make()
    with torch.no_grad():
        model.decoder_norm.bias[0] = float("nan")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(RunFailed) as caught:
        updater.update([batch_of(0, 2)], tokens=5, step=7, rate=0.25)
    sentence = str(caught.value)
    for part in ("step 7", "loss is nan", "gradient norm nan", "learning rate 0.25", "examples 0, 2", "checkpoint is intact"):
        assert part in sentence
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], equal_nan=True, rtol=0, atol=0)


def test_clipping_bounds_the_step_and_reports_the_norm_before() -> None:
    norms = []
    for clip in (None, 1e-3):
        _, updater, _ = make(clip=clip)
        norms.append(updater.update([batch_of(0, 1, 2, 3)], tokens=12, step=1, rate=0.0).grad_norm)
    assert norms[0] == pytest.approx(norms[1])
    assert norms[0] > 1e-3


PROJECTED: dict[str, object] = {kind: {"alpha_parametrization": "projected"} for kind in ("encoder", "decoder", "cross")}


def test_alphas_have_their_own_rate_never_decay_and_stay_within_their_bounds() -> None:
    _, updater, _ = make(model=PROJECTED, alpha_lr_factor=10.0, weight_decay=0.5)
    groups = {group["name"]: group for group in updater.optimizer.param_groups}
    assert [groups[name]["weight_decay"] for name in ("decay", "no_decay", "alpha")] == [0.5, 0.0, 0.0]
    for step in range(1, 6):
        updater.update([batch_of(0, 1)], tokens=8, step=step, rate=0.1)
    assert (groups["decay"]["lr"], groups["alpha"]["lr"]) == (0.1, 1.0)
    values = torch.cat([parameter.detach() for parameter in groups["alpha"]["params"]])
    assert ((values >= 1.0) & (values <= 2.0)).all()  # the parameters themselves, not what forward makes of them
    assert ((values == 1.0) | (values == 2.0)).any()
    updater.update([batch_of(0, 1)], tokens=8, step=6, rate=0.0)
    assert torch.equal(torch.cat([parameter.detach() for parameter in groups["alpha"]["params"]]), values)  # no decay


@pytest.mark.parametrize("kinds", [{}, PROJECTED])
def test_alphas_wait_for_their_start_step(kinds: dict[str, object]) -> None:
    model, updater, _ = make(model=kinds, alpha_start_step=2)
    before, weight = model.alphas()["cross"].clone(), model.source_embedding.detach().clone()
    for step in (1, 2):
        updater.update([batch_of(0, 1)], tokens=8, step=step, rate=0.1)
        assert torch.equal(model.alphas()["cross"], before)
    assert not torch.equal(model.source_embedding, weight)
    updater.update([batch_of(0, 1)], tokens=8, step=3, rate=0.1)
    assert not torch.equal(model.alphas()["cross"], before)


def test_optimizer_state_has_a_name_for_every_tensor() -> None:
    model, updater, _ = make()
    updater.update([batch_of(0, 1)], tokens=8, step=1, rate=0.1)
    names = optimizer_tensors(updater.optimizer, model)
    parameters = dict(model.named_parameters())
    assert set(names) == {f"{name}/{what}" for name in parameters for what in ("step", "exp_avg", "exp_avg_sq")}


@pytest.mark.parametrize(
    ("has_it", "chosen"),
    [("_is_avx512_bf16_supported", "bfloat16"), ("_is_amx_tile_supported", "bfloat16"), ("", "float32")],
)
def test_auto_is_bfloat16_where_the_processor_has_it(has_it: str, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name == has_it)
    assert precision_here("auto", torch.device("cpu")) == chosen
    assert precision_here("float32", torch.device("cpu")) == "float32"  # what is asked for is never changed
