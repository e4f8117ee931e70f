"""What every public module and function must go through: copies, files, meta devices, transforms, averaging, export, DDP.

A new one joins by a line in `CASES`; a public name that is in no case fails `test_every_public_name_is_in_a_case`. Run as a
script, this file is one process of the DDP test.
"""

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import entformer as ef
from entformer.nn.layers import CausalLayer, DecoderLayer, EncoderLayer
from entformer.nn.normalizer_functions import AdaptiveTemperature, ReluN, Sigmoid, TopK
from entformer.nn.positions import Rotary, Sinusoidal

WIDTH, HEADS, VOCABULARY = 8, 2, 11
SHORT, LONG = 5, 70  # tables of positions grow between the two


class Case(NamedTuple):
    """How to make a module, and how to call it with x (B, L, WIDTH), whatever B and L are."""

    make: Callable[[], nn.Module]
    call: Callable[[Any, Tensor], Tensor]
    names: tuple[str, ...]  # the public names it stands for


def heads_of(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def scores_of(x: Tensor) -> Tensor:
    q = heads_of(x)
    return q @ q.mT


def ids_of(x: Tensor) -> Tensor:
    return (x[..., 0].detach().abs() * 1000).long() % (VOCABULARY - 4) + 4


def lengths_of(x: Tensor) -> Tensor:
    return torch.arange(2, x.shape[1] + 2, device=x.device).expand(x.shape[0], -1)


def attention_case(**options: Any) -> Case:
    causal = options.pop("is_causal", False)
    weights = options.pop("need_weights", False)

    def call(module: nn.Module, x: Tensor) -> Tensor:
        out, found = module(x, x, x, need_weights=weights, is_causal=causal)
        result: Tensor = out if found is None else out + found.sum(-1, keepdim=True)
        return result

    return Case(lambda: ef.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options), call, ("MultiheadAttention",))


def language_model_case(**options: Any) -> Case:
    def make() -> nn.Module:
        config = {"vocab_size": VOCABULARY, "width": WIDTH, "heads": HEADS, "hidden": 16, "layers": 1, **options}
        return ef.CausalLM(ef.LMConfig.from_dict(config))

    return Case(make, lambda module, x: module(ids_of(x)), ("CausalLM", "LMConfig", "LMAttentionConfig"))


def translation_case(**options: Any) -> Case:
    def make() -> nn.Module:
        sizes = {"width": WIDTH, "heads": HEADS, "hidden": 16, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
        return ef.Seq2Seq(ef.Seq2SeqConfig.from_dict({"vocab_size": VOCABULARY, **sizes, **options}))

    return Case(make, lambda module, x: module(ids_of(x), ids_of(x)), ("Seq2Seq", "Seq2SeqConfig"))


def function_case(function: Callable[[Tensor], Tensor], *names: str) -> Case:
    return Case(nn.Identity, lambda _, x: function(x), names)


def mapping_case(name: str, *functions: str) -> Case:
    """A module that does nothing but call the functions of that name."""
    return Case(lambda: getattr(ef, name)(), lambda module, x: module(x), (name, *functions))


def loss_case(name: str, function: str) -> Case:
    return Case(
        lambda: getattr(ef, name)(reduction="sum"),
        lambda module, x: module(x.flatten(0, 1), ids_of(x).flatten() % WIDTH),
        (name, function),
    )


def layer(**options: Any) -> Any:
    return ef.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)


CASES: dict[str, Case] = {
    "attention, learned": attention_case(),
    "attention, fixed": attention_case(alpha=1.5, is_causal=True),
    "attention, weights": attention_case(need_weights=True),
    "attention, rotary": attention_case(positions="rotary", is_causal=True),
    "attention, alibi": attention_case(positions="alibi"),
    "attention, nape, asentmax": attention_case(positions=ef.Positions("nape"), normalizer="asentmax", is_causal=True),
    "attention, rela": attention_case(normalizer="rela"),
    "attention, ssmax by sdpa": attention_case(normalizer="ssmax", backend="sdpa"),
    "attention, topk": attention_case(normalizer="topk"),
    **{
        f"attention, {name}": attention_case(normalizer=name, is_causal=True, output_norm="rms")
        for name in ("stickbreaking", "softmax1", "adaptive_span", "softmax_temperature", "relu2")
    },
    "attention, extra keys": attention_case(add_bias_kv=True, add_zero_attn=True, alpha_tied="layer"),
    "language model, nape": language_model_case(positions="nape"),
    "language model, rotary": language_model_case(positions="rotary", attention={"alpha": "learned", "alpha_tied": "kind"}),
    "language model, sinusoidal": language_model_case(positions="sinusoidal", tied_output=True),
    "translation, sinusoidal": translation_case(),
    "translation, alibi": translation_case(positions="alibi", tied_embeddings="none", norm="post"),
    "encoder layer": Case(lambda: EncoderLayer(layer(), 16, dropout=0.0), lambda module, x: module(x), ()),
    "decoder layer": Case(lambda: DecoderLayer(layer(), layer(), 16, dropout=0.0), lambda module, x: module(x, x), ()),
    "causal layer": Case(lambda: CausalLayer(layer(positions="nape"), 16), lambda module, x: module(x), ()),
    "Rotary": Case(lambda: Rotary(WIDTH // HEADS), lambda module, x: module(heads_of(x)), ()),
    "Sinusoidal": Case(lambda: Sinusoidal(WIDTH), lambda module, x: x + module(x.shape[1], like=x), ()),
    "RelaNorm": Case(lambda: ef.RelaNorm(WIDTH, HEADS), lambda module, x: module(x), ("RelaNorm",)),
    "LearnedAlpha": Case(
        lambda: ef.LearnedAlpha(WIDTH, parametrization="sigmoid"), lambda module, x: x * module(), ("LearnedAlpha",)
    ),
    "LearnedAlpha, projected": Case(lambda: ef.LearnedAlpha(WIDTH), lambda module, x: x * module(), ("LearnedAlpha",)),
    "AlphaChooser": Case(lambda: ef.AlphaChooser(WIDTH), lambda module, x: x * module(), ("AlphaChooser",)),
    "EntmaxAlpha": Case(lambda: ef.EntmaxAlpha(HEADS), lambda module, x: module(scores_of(x)), ("EntmaxAlpha",)),
    "SSMaxScaling": Case(lambda: ef.SSMaxScaling(HEADS), lambda module, x: module(x, lengths_of(x)), ("SSMaxScaling",)),
    "PerHeadScaling": Case(lambda: ef.PerHeadScaling(HEADS), lambda module, x: module(x, lengths_of(x)), ("PerHeadScaling",)),
    "TemperatureScaling": Case(
        lambda: ef.TemperatureScaling(HEADS, 4), lambda module, x: module(x, lengths_of(x)), ("TemperatureScaling",)
    ),
    "ASEntmaxScaling": Case(
        lambda: ef.ASEntmaxScaling(WIDTH, HEADS, init="paper"), lambda module, x: module(x, lengths_of(x)), ("ASEntmaxScaling",)
    ),
    **{f.__name__: Case(f, lambda module, x: module(scores_of(x)), ()) for f in (TopK, AdaptiveTemperature, Sigmoid, ReluN)},
    "Sparsemax": mapping_case("Sparsemax", "sparsemax"),
    "SparsemaxBisect": mapping_case("SparsemaxBisect", "sparsemax_bisect"),
    "Entmax": mapping_case("Entmax"),
    "Entmax15": mapping_case("Entmax15", "entmax15", "entmax_support"),
    "EntmaxBisect": mapping_case("EntmaxBisect", "entmax_bisect"),
    "NormmaxBisect": mapping_case("NormmaxBisect", "normmax_bisect"),
    "BudgetBisect": mapping_case("BudgetBisect", "budget_bisect"),
    "EntmaxLoss": loss_case("EntmaxLoss", "entmax_loss"),
    "Entmax15Loss": loss_case("Entmax15Loss", "entmax15_loss"),
    "EntmaxBisectLoss": loss_case("EntmaxBisectLoss", "entmax_bisect_loss"),
    "SparsemaxLoss": loss_case("SparsemaxLoss", "sparsemax_loss"),
    "SparsemaxBisectLoss": loss_case("SparsemaxBisectLoss", "sparsemax_bisect_loss"),
    "NormmaxBisectLoss": loss_case("NormmaxBisectLoss", "normmax_bisect_loss"),
    "attention": function_case(lambda x: ef.attention(heads_of(x), heads_of(x), heads_of(x), is_causal=True), "attention"),
    "entmax": function_case(lambda x: ef.entmax(x, 1.3), "entmax"),
    "log_entmax": function_case(lambda x: ef.log_entmax(x, 1.0), "log_entmax"),
}
NO_MODULES = {
    "__version__",
    "Attention",
    "RowStats",
    "Support",
    "SlowPathWarning",
    "KeyValueCache",
    "WindowedCache",
    "Positions",
}
NO_MODULES |= {
    "project_alphas",
    "register_operators",
    "NORMALIZERS",
    "Normalizer",
    "alibi_windows",
    "ArgumentError",
    "DataError",
    "EntformerError",
    "ImplUnavailable",
    "MissingExtra",
    "AttentionTrace",
    "AttentionTraces",
    "AttentionView",
    "trace_attention",
    "show",
}


class Holder(nn.Module):
    """A case as one module of x, with a parameter of its own, which every tool needs to have something to work on."""

    def __init__(self, name: str, device: str = "cpu") -> None:
        super().__init__()
        self.name = name
        torch.manual_seed(0)
        with torch.device(device):
            self.inner = CASES[name].make()
            self.scale = nn.Parameter(torch.ones(1))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return CASES[self.name].call(self.inner, x) * self.scale


def random(length: int, seed: int = 0) -> Tensor:
    return torch.randn(2, length, WIDTH, generator=torch.Generator().manual_seed(seed))


def gradients(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    module(x).float().square().mean().backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=False)


each = pytest.mark.parametrize("name", CASES)


def test_every_public_name_is_in_a_case() -> None:
    assert set(ef.__all__) - NO_MODULES == {name for case in CASES.values() for name in case.names}


@each
def test_copies_and_files(name: str) -> None:
    module, x = Holder(name), random(SHORT)
    expected = module(x)
    assert_same(copy.deepcopy(module)(x), expected)
    twin = pickle.loads(pickle.dumps(module.inner))
    assert_same(CASES[name].call(twin, x) * module.scale, expected)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = Holder(name)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_same(other(x), expected)


@each
def test_made_on_meta_then_filled(name: str) -> None:
    x = random(LONG)
    source = Holder(name)
    for module in (Holder(name, "meta").to_empty(device="cpu"), nn.utils.skip_init(Holder, name)):
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.fill_(torch.nan)  # what is left uninitialized shows
        module.apply(lambda part: part.reset_parameters() if hasattr(part, "reset_parameters") else None)
        assert bool(module(x).isfinite().all())
        module.load_state_dict(source.state_dict())
        assert_same(module(x), source(x))
    module = Holder(name, "meta")
    module.load_state_dict(source.state_dict(), assign=True)
    assert_same(module(x), source(x))


@each
def test_inference_mode_then_training_then_longer(name: str) -> None:
    module, fresh = Holder(name), Holder(name)
    with torch.inference_mode():
        module(random(SHORT))
        module(random(LONG))
    for length in (SHORT, LONG, 2 * LONG):
        assert_same(gradients(module, random(length)), gradients(fresh, random(length)))


@each
def test_functional_call(name: str) -> None:
    module, x = Holder(name), random(SHORT)

    def loss(state: dict[str, Tensor]) -> Tensor:
        out: Tensor = torch.func.functional_call(module, state, (x,))
        return out.float().square().mean()

    assert_same(torch.func.grad(loss)(dict(module.named_parameters())), gradients(module, x))


@each
def test_stacked_states(name: str) -> None:
    modules = [Holder(name).eval() for _ in range(2)]
    modules[0](random(LONG))  # has seen more than the other
    with torch.no_grad():
        for parameter in modules[1].parameters():
            parameter.mul_(1.25)
    state, buffers = torch.func.stack_module_state(modules)
    skeleton, x = copy.deepcopy(modules[0]).to("meta"), random(SHORT)

    def one(state: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        out: Tensor = torch.func.functional_call(skeleton, (state, buffers), (x,))
        return out

    found = torch.func.vmap(one)(state, buffers)
    assert_same(found, torch.stack([module(x) for module in modules]))


@each
def test_averaged(name: str) -> None:
    module, x = Holder(name), random(SHORT)
    mean = torch.optim.swa_utils.AveragedModel(module, use_buffers=True)
    for length in (SHORT, LONG):
        module(random(length))
        mean.update_parameters(module)
    assert_same(mean(x), module(x))


@each
def test_bfloat16_and_back(name: str) -> None:
    module, x = Holder(name), random(SHORT)
    expected, state = module(x), copy.deepcopy(module.state_dict())
    assert bool(module.bfloat16()(x.bfloat16()).isfinite().all())
    module.float().load_state_dict(state)
    assert torch.equal(module(x), expected)


@each
def test_exported_with_a_dynamic_length(name: str, kernels: None) -> None:
    module = Holder(name).eval()
    length = torch.export.Dim("length", min=2, max=1000)
    program = torch.export.export(module, (random(SHORT),), dynamic_shapes={"x": {1: length}})
    for x in (random(SHORT, 1), random(LONG)):
        assert_same(program.module()(x), module(x))


def test_distributed_with_uneven_lengths(tmp_path: Path) -> None:
    """One pair of processes goes through all cases."""
    command = [sys.executable, __file__, str(tmp_path / "store")]
    workers = [subprocess.Popen([*command, rank], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in "01"]
    outputs = [worker.communicate(timeout=300)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(outputs)


def run_distributed(store: str, rank: int) -> None:
    """Outputs are those of the module alone, gradients the mean over both processes, whichever has seen more."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for name in CASES:
        alone, shared = Holder(name), nn.parallel.DistributedDataParallel(Holder(name))
        for lengths in ((SHORT, LONG), (2 * LONG, SHORT)):
            x = random(lengths[rank], seed=rank)
            assert_same(shared(x), alone(x))
            expected = gradients(alone, x)
            for gradient in expected.values():
                torch.distributed.all_reduce(gradient)
                gradient /= 2
            assert_same({"module." + key: value for key, value in expected.items()}, gradients(shared, x))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    run_distributed(sys.argv[1], int(sys.argv[2]))
