"""The translation model: losses, padding, decoding token by token, beams, what it owns and how it starts."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from entformer.data.batch import Batch
from entformer.errors import ArgumentError
from entformer.functional import entmax
from entformer.models.config import AttentionConfig, Seq2SeqConfig
from entformer.models.seq2seq import KINDS, Seq2Seq
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.normalizers import NORMALIZERS
from entformer.text.tokenizer import BOS, EOS, PAD

CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 1e-5}
VOCABULARY = 23


def model_of(attention: AttentionConfig | None = None, *, seed: int = 0, **fields: Any) -> Seq2Seq:
    torch.manual_seed(seed)
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "heads": 2, "width": 8, "hidden": 12, "dropout": 0.0}
    kinds = {} if attention is None else dict.fromkeys(KINDS, attention)
    return Seq2Seq(Seq2SeqConfig(**{"vocab_size": VOCABULARY, **sizes, **kinds, **fields})).eval()


def kinds_of(name: str) -> dict[str, AttentionConfig]:
    """This normalizer wherever it can be: those that need places are for self-attention, causal ones for the decoder's."""
    traits, chosen = NORMALIZERS[name], AttentionConfig(normalizer=name)
    kinds = ("decoder",) if traits.causal_only else ("encoder", "decoder") if traits.uses_positions else KINDS
    return dict.fromkeys(kinds, chosen)


def batch_of(source_lengths: list[int], target_lengths: list[int], seed: int = 0) -> Batch:
    """Random tokens; lengths as in Batch: EOS counted, BOS not."""
    generator = torch.Generator().manual_seed(seed)
    rows = len(source_lengths)
    source = torch.full((rows, max(source_lengths)), PAD)
    target = torch.full((rows, max(target_lengths) + 1), PAD)
    target[:, 0] = BOS
    for row, (s, t) in enumerate(zip(source_lengths, target_lengths, strict=True)):
        source[row, :s] = torch.cat([torch.randint(4, VOCABULARY, (s - 1,), generator=generator), torch.tensor([EOS])])
        target[row, 1 : t + 1] = torch.cat([torch.randint(4, VOCABULARY, (t - 1,), generator=generator), torch.tensor([EOS])])
    return Batch(source, target, torch.tensor(source_lengths), torch.tensor(target_lengths), tuple(range(rows)))


BATCH = batch_of([5, 9, 2], [7, 3, 6])


# ---- losses ----------------------------------------------------------------------------------------------------------------


def test_loss_equals_torch_cross_entropy() -> None:
    model = model_of(label_smoothing=0.1)
    sums = model.loss(BATCH)
    scores, labels = model(BATCH.source, BATCH.target[:, :-1]).transpose(1, 2), BATCH.target[:, 1:]
    options: dict[str, Any] = {"ignore_index": PAD, "reduction": "sum"}
    torch.testing.assert_close(sums.loss, F.cross_entropy(scores, labels, label_smoothing=0.1, **options))
    torch.testing.assert_close(sums.nll, F.cross_entropy(scores, labels, **options))
    assert sums.correct == ((scores.argmax(1) == labels) & (labels != PAD)).sum()
    assert sums.tokens == 7 + 3 + 6
    expected = torch.autograd.grad(F.cross_entropy(scores, labels, label_smoothing=0.1, **options), list(model.parameters()))
    found = torch.autograd.grad(sums.loss, list(model.parameters()))
    for (name, _), got, wanted in zip(model.named_parameters(), found, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_padding_changes_nothing(name: str) -> None:
    """A batch costs what its sentences cost one by one."""
    model = model_of(**kinds_of(name))
    alone = [model.loss(batch) for batch in map(_one, range(3))]
    together = model.loss(BATCH)
    torch.testing.assert_close(together.loss, torch.stack([sums.loss for sums in alone]).sum(), rtol=1e-5, atol=1e-4)
    assert together.tokens == sum(sums.tokens for sums in alone)


def _one(row: int) -> Batch:
    s, t = int(BATCH.source_lengths[row]), int(BATCH.target_lengths[row])
    rows = slice(row, row + 1)
    lengths = BATCH.source_lengths[rows], BATCH.target_lengths[rows]
    return Batch(BATCH.source[rows, :s], BATCH.target[rows, : t + 1], *lengths, (row,))


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("name", NORMALIZERS)
def test_every_parameter_gets_a_gradient(name: str, norm: str) -> None:
    model = model_of(**kinds_of(name), norm=norm, dropout=0.1, attention_dropout=0.1).train()
    model.loss(BATCH).loss.backward()
    # With identity start the length scaling's gamma acts only from the second step on; nothing else may be idle.
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_sparse_output() -> None:
    model = model_of(output="entmax", output_alpha=1.5)
    model.loss(BATCH).loss.backward()
    with torch.no_grad():
        logits = 5.0 * model(BATCH.source, BATCH.target[:, :-1])
        found = model.log_probs(logits)
    assert found.isneginf().any()
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(found.shape[:-1]))
    torch.testing.assert_close(model_of().log_probs(logits), logits.log_softmax(-1))


# ---- token by token --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi", "nape", "none"])
@pytest.mark.parametrize("name", NORMALIZERS)
def test_steps_equal_the_teacher_forced_pass(name: str, positions: str) -> None:
    model, close = model_of(**kinds_of(name), positions=positions), CLOSE
    if name in (
        "gelu",
        "leaky_relu",
    ):  # no kernels of their own; in float32 rounding reaches 1e-5, which hides nothing in float64
        model, close = model.double(), {"rtol": 0.0, "atol": 1e-12}
    expected = model(BATCH.source, BATCH.target[:, :-1]).detach()
    state = model.start(BATCH.source)
    for t in range(BATCH.target.shape[1] - 1):
        assert state.length == t
        torch.testing.assert_close(model.step(BATCH.target[:, t], state), expected[:, t], **close)


def test_a_prefix_at_once() -> None:
    model = model_of()
    expected = model(BATCH.source, BATCH.target[:, :-1])
    state = model.start(BATCH.source, BATCH.source_mask)
    torch.testing.assert_close(model.step(BATCH.target[:, :4], state), expected[:, 3].detach(), **CLOSE)
    torch.testing.assert_close(model.step(BATCH.target[:, 4:6], state), expected[:, 5].detach(), **CLOSE)


@pytest.mark.parametrize(
    "moves", [[[0, 0, 1, 1, 2, 2], [1, 0, 3, 3, 4, 5], [0, 1, 5]], [[2, 0, 1], [1]], [[0, 1, 2], [2, 2, 2, 1]]]
)
def test_reordered_rows_go_on_as_if_alone(moves: list[list[int]]) -> None:
    model, generator = model_of(), torch.Generator().manual_seed(1)
    state = model.start(BATCH.source)
    rows = [(b, [BOS]) for b in range(3)]  # (source, tokens so far)
    logits = model.step(torch.tensor([tokens[-1] for _, tokens in rows]), state)
    for index in moves:
        state.reorder(torch.tensor(index))
        new = torch.randint(4, VOCABULARY, (len(index),), generator=generator)
        rows = [(rows[i][0], [*rows[i][1], int(token)]) for i, token in zip(index, new, strict=True)]
        logits = model.step(new, state)
        assert state.batch == len(index)
    sources = BATCH.source[[b for b, _ in rows]]
    expected = model(sources, torch.tensor([tokens for _, tokens in rows]))[:, -1]
    torch.testing.assert_close(logits, expected.detach(), **CLOSE)


def test_reorder_before_the_first_step() -> None:
    model = model_of()
    state = model.start(BATCH.source)
    state.reorder(torch.tensor([2, 1]))
    expected = model(BATCH.source[[2, 1]], torch.tensor([[BOS], [BOS]]))[:, 0]
    torch.testing.assert_close(model.step(torch.tensor([BOS, BOS]), state), expected.detach(), **CLOSE)
    with pytest.raises(ArgumentError, match=r"tokens must be \(2,\)"):
        model.step(torch.tensor([BOS]), state)


# ---- what is inside --------------------------------------------------------------------------------------------------------


def test_alphas_by_kind() -> None:
    model = model_of(encoder=AttentionConfig(normalizer="rela"), cross=AttentionConfig(alpha_init=1.25))
    alphas = model.alphas()
    assert {kind: tuple(a.shape) for kind, a in alphas.items()} == {"decoder": (3, 2), "cross": (3, 2)}
    torch.testing.assert_close(alphas["cross"], torch.full((3, 2), 1.25))
    assert len(alphas["decoder"].unique()) == 6
    assert not alphas["decoder"].requires_grad


@pytest.mark.parametrize(("tied", "different"), [("head", 6), ("layer", 3), ("kind", 1)])
def test_tied_alphas(tied: str, different: int) -> None:
    model = model_of(decoder=AttentionConfig(alpha_tied=tied))  # type: ignore[arg-type]
    assert len(model.alphas()["decoder"].unique()) == different
    own = [p for name, p in model.named_parameters() if name.endswith("pre_alpha")]
    assert sum(p.numel() for p in own) == different + 4 + 6
    assert len({id(p) for p in own}) == len(own) == sum(name.endswith("pre_alpha") for name in model.state_dict())
    model.loss(BATCH).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in own)


@pytest.mark.parametrize(("tied", "numbers"), [("across_kinds", 6), ("model", 1)])
def test_alphas_tied_over_kinds(tied: str, numbers: int) -> None:
    """Three layers of two heads: the same alphas in encoder, decoder and cross attention, or one alpha everywhere."""
    model = model_of(AttentionConfig(alpha_tied=tied))  # type: ignore[arg-type]
    alphas = model.alphas()
    assert torch.equal(alphas["decoder"], alphas["cross"])
    assert torch.equal(alphas["encoder"], alphas["decoder"][:2])  # of two layers
    assert len(torch.cat(list(alphas.values())).unique()) == numbers
    own = [p for name, p in model.named_parameters() if name.endswith("pre_alpha")]
    assert sum(p.numel() for p in own) == numbers
    assert model.parameter_groups()["alpha"] == own
    model.loss(BATCH).loss.backward()
    assert all(p.grad is not None and p.grad.all() for p in own)
    again = model_of(AttentionConfig(alpha_tied=tied), seed=5)  # type: ignore[arg-type]
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.alphas()["cross"], alphas["cross"])


def test_an_alpha_tied_over_some_kinds_leaves_the_others_alone() -> None:
    kinds: Any = {kind: AttentionConfig(alpha_tied="model", alpha_init=1.5) for kind in ("encoder", "cross")}
    model = model_of(**kinds, decoder=AttentionConfig(normalizer="softmax"))
    assert [name for name in model.state_dict() if "pre_alpha" in name] == ["kind_alphas.model.pre_alpha"]
    with pytest.raises(ValueError, match="alpha_init must be the same"):
        model_of(**kinds, decoder=AttentionConfig(alpha_tied="model", alpha_init=1.2))


def test_nape_in_both_self_attentions() -> None:
    """Half the heads have ALiBi, on both sides of a query in the encoder; cross attention has no positions."""
    model = model_of(AttentionConfig(normalizer="asentmax"), positions="nape", heads=4)
    slopes = {kind: attention.slopes for kind, _, attention in model.attention_layers()}
    assert slopes["cross"] is None
    for kind in ("encoder", "decoder"):
        assert slopes[kind].tolist() == [1.0, 0.5, 0.0, 0.0]  # type: ignore[union-attr]
    encoder = next(attention for kind, _, attention in model.attention_layers() if kind == "encoder")
    torch.manual_seed(0)
    plain = MultiheadAttention(8, 4, batch_first=True, normalizer="asentmax")
    plain.load_state_dict(encoder.state_dict())
    x, at = torch.randn(2, 7, 8), torch.arange(7)
    bias = -torch.tensor([1.0, 0.5, 0.0, 0.0])[:, None, None] * (at[:, None] - at).abs()
    factor = encoder.scaling(x, torch.tensor([[7] * 7]))[:, :2, :, None]  # type: ignore[misc]  # NAPE's ALiBi heads are not scaled
    _, weights = encoder(x, x, x, average_attn_weights=False)
    q, k, _ = (t.unflatten(-1, (4, 2)).transpose(1, 2) for t in (x @ plain.state_dict()["in_proj_weight"].T).chunk(3, -1))
    scores = q @ k.transpose(-1, -2) / 2**0.5
    scores = torch.cat([scores[:, :2], factor * scores[:, 2:]], 1) + bias
    torch.testing.assert_close(weights, entmax(scores, 1.5).detach(), **CLOSE)
    share = model_of(positions="nape", heads=4, nape_share=0.25, nape_slopes="exponential")
    assert next(share.attention_layers())[2].slopes.tolist() == [1.0, 0.0, 0.0, 0.0]  # type: ignore[union-attr]


def test_length_scaling_is_chosen_in_the_configuration() -> None:
    """SSMax's start, and ASEntmax's start and gamma."""
    chosen = {
        "encoder": AttentionConfig(normalizer="ssmax", scaling_init=0.43),
        "decoder": AttentionConfig(normalizer="asentmax", scaling_init="paper", scaling_gamma=2.0),
        "cross": AttentionConfig(normalizer="softmax_temperature", temperature=0.5),
    }
    model = model_of(**chosen)
    scaling = {kind: attention.scaling for kind, _, attention in model.attention_layers()}
    assert scaling["encoder"].s.mean().item() == pytest.approx(0.43, abs=0.05)  # type: ignore[union-attr, operator]
    assert scaling["decoder"].beta.weight.std() > 0.0  # type: ignore[union-attr, operator]
    assert set(scaling["decoder"].state_dict()) == {"beta.weight", "beta.bias"}  # type: ignore[union-attr]
    assert scaling["cross"].factor == pytest.approx(2.0 / 0.5)  # type: ignore[union-attr]  # heads of 4
    model.loss(BATCH).loss.backward()


def test_spans_cost_in_training_alone() -> None:
    short = AttentionConfig(normalizer="adaptive_span", options={"max_span": 40.0, "init": 10.0, "penalty": 0.5})
    model = model_of(encoder=short, decoder=short)
    expected = model.loss(BATCH)
    found = model.train().loss(BATCH)
    layers = 2 + 3
    assert (found.loss - expected.loss).item() == pytest.approx(found.tokens * layers * 0.5 * 10.0, rel=1e-4)
    assert torch.equal(found.nll, expected.nll)


@pytest.mark.parametrize(("tied", "matrices"), [("all", 1), ("decoder", 2), ("none", 3)])
def test_tied_embeddings(tied: str, matrices: int) -> None:
    model = model_of(tied_embeddings=tied)
    found = [p for p in model.parameters() if p.shape == (VOCABULARY, 8)]
    assert len(found) == matrices
    assert all((p[PAD] == 0.0).all() for p in found)
    pointers = [t.data_ptr() for t in model.state_dict().values()]
    assert len(set(pointers)) == len(pointers)  # nothing twice: safetensors takes it as it is
    model.loss(BATCH).loss.backward()


def test_parameter_groups_hold_everything_once() -> None:
    model = model_of(AttentionConfig(normalizer="asentmax", alpha="learned", alpha_tied="kind"))
    groups = model.parameter_groups()
    assert list(groups) == ["decay", "no_decay", "alpha"]
    everything = [id(p) for group in groups.values() for p in group]
    assert sorted(everything) == sorted(id(p) for p in model.parameters())
    assert len(groups["alpha"]) == 3
    assert all(p.dim() == 2 for p in groups["decay"])
    assert any(p is model.source_embedding for p in groups["no_decay"])


def test_attention_layers_are_all_there_in_order() -> None:
    model = model_of()
    found = [(kind, layer) for kind, layer, _ in model.attention_layers()]
    assert found == [("encoder", 0), ("encoder", 1), *(("decoder", i) for i in range(3)), *(("cross", i) for i in range(3))]
    seen: list[tuple[str, int]] = []
    for kind, layer, attention in model.attention_layers():
        attention.hook = lambda trace, at=(kind, layer): seen.append(at)  # type: ignore[misc]
    with torch.no_grad():
        model.step(torch.tensor([BOS] * 3), model.start(BATCH.source))
    assert sorted(seen) == sorted(found)


def test_starting_values() -> None:
    model = model_of(width=64, hidden=64, vocab_size=2000)
    assert abs(model.source_embedding.std().item() * 8 - 1.0) < 0.02
    with torch.no_grad():
        source = torch.randint(4, 2000, (4, 10), generator=torch.Generator().manual_seed(0))
        scores: Tensor = model(source, source)
    assert 0.7 < scores.std().item() < 1.4  # so the first loss is near ln V


def test_forward_compiles(kernels: None) -> None:
    model = model_of(AttentionConfig(normalizer="entmax"))
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(BATCH.source, BATCH.target), model(BATCH.source, BATCH.target), **CLOSE)
