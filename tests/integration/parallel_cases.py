"""Trains tiny models with one process or, under each engine, with two. Run by `test_parallel_training.py`.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python parallel_cases.py DIRECTORY [CASE ...]
"""

import contextlib
import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from entformer.data.batching import TokenBatches
from entformer.data.store import TokenStore
from entformer.data.text import TextBatches
from entformer.distributed import sharded_attention
from entformer.kernels.attention.api import attention
from entformer.models.attention_settings import AttentionModel
from entformer.models.config import Seq2SeqConfig
from entformer.models.fused_loss import LossSums
from entformer.models.lm import CausalLM
from entformer.models.lm_config import LMConfig
from entformer.models.seq2seq import Seq2Seq
from entformer.tasks import train as train_recipe
from entformer.training.density_target import DensityTarget
from entformer.training.loop import Trainer
from entformer.training.optim import make_optimizer
from entformer.training.parallel import checkpoint_activations, make_engine
from entformer.training.ranks import Ranks
from entformer.training.recipe import TrainingConfig
from entformer.training.update import Updater

RATE = 2e-3  # larger ones make differences of rounding grow
SIZES = {"heads": 2, "width": 8, "hidden": 12}
LEARNED = {"normalizer": "entmax", "alpha": "learned", "alpha_parametrization": "projected"}


@dataclass(frozen=True)
class Case:
    """Settings of a training."""

    name: str
    task: str
    parallel: str = "ddp"
    steps: int = 50
    accumulate: int = 1
    unused: bool = False
    """Whether one attention layer has a fixed alpha, so that its learned one gets no gradient."""
    density: float | None = None
    fails: bool = False
    """Whether process 1 runs out of memory in a backward whose gradients are already being summed."""
    training: dict[str, Any] = field(default_factory=dict)


def _cases() -> Iterator[Case]:
    for parallel, task in itertools.product(("ddp", "fsdp"), ("translation", "language")):
        start, density = f"{parallel}-{task}", 0.5 if task == "translation" else None
        options: dict[str, Any] = {
            "accumulate": 2,
            "unused": True,
            "density": density,
            "training": {"clip": 0.05, "alpha_lr_factor": 5.0},
        }
        yield Case(f"{start}-clipped", task, parallel, **options)
        yield Case(f"{start}-unclipped", task, parallel, training={"clip": None, "checkpoint_activations": task == "language"})
    yield Case("ddp-translation-out-of-memory", "translation", steps=6, fails=True)


RESUMED = ("ddp", "fsdp")
CASES = {case.name: case for case in _cases()}


def _model(task: str) -> AttentionModel:
    if task == "language":
        return CausalLM(LMConfig.from_dict({"vocab_size": 24, "layers": 2, "attention": LEARNED, **SIZES}))
    kinds = dict.fromkeys(("encoder", "decoder", "cross"), LEARNED)
    layers = {"encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    return Seq2Seq(Seq2SeqConfig.from_dict({"vocab_size": 24, **layers, **SIZES, **kinds}))


def _batches(task: str, **shares: int) -> Any:
    rng = np.random.default_rng(5)
    if task == "language":
        ids = rng.integers(4, 24, 4000).astype(np.int64)
        ids[::57] = 2  # documents begin
        return TextBatches(ids, length=12, rows=3, seed=1, **shares)
    lengths = rng.integers(1, 8, (240, 2))
    examples = [(rng.integers(4, 24, a).tolist(), rng.integers(4, 24, b).tolist()) for a, b in lengths]
    return TokenBatches(TokenStore.from_examples(examples), tokens=32, **shares)


def _endless(source: Any) -> Iterator[Any]:
    for epoch in itertools.count():
        yield from source.epoch(epoch)


class _OutOfMemory(torch.autograd.Function):
    """Raises in backward what torch raises without memory."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory")


def train(case: Case, ranks: Ranks) -> dict[str, Any]:
    """Returns the loss, the norm and all alphas of every step, and the last weights; each step has four or two batches."""
    per_step = 2 * case.accumulate
    torch.manual_seed(3)
    model = _model(case.task).train()
    if case.unused:
        next(attention for _, _, attention in model.attention_layers()).alpha_override = torch.tensor([1.5, 1.3])
    failing = [case.fails and ranks.rank == 1]

    def loss(model: Any, batch: Any) -> LossSums:
        if case.task == "language":
            found: LossSums = model.loss(batch.inputs, batch.labels, cu_seqlens=batch.cu_seqlens)
            return found
        weight = model.encoder_norm.weight  # used before the middle of the model: later gradients are summed already
        fails = failing[0] and len(batch.examples) > 2
        with _replaced(model.encoder_norm, "weight", _OutOfMemory.apply(weight)) if fails else contextlib.nullcontext():
            return model.loss(batch)

    config = TrainingConfig.model_validate({**case.training})
    if config.checkpoint_activations:
        checkpoint_activations(model)
    failing[0], fails = False, failing[0]  # not in the probe of DDP
    source = _batches(case.task, rank=ranks.rank, world_size=ranks.size, per_step=per_step)
    sample = next(iter(source.epoch(0)))
    options: dict[str, Any] = {"sample": sample, "precision": "float32", "build": lambda: _model(case.task)}
    engine = make_engine(case.parallel, model, loss, ranks, **options)
    failing[0] = fails
    optimizer = make_optimizer(model, config)
    same = next(iter(_batches(case.task).epoch(0)))
    density = None if case.density is None else DensityTarget(model, same, case.density)
    said: list[str] = []
    updater = Updater(engine, optimizer, config, said.append, density)
    stream = _endless(source)
    losses, norms, alphas = [], [], []
    for step in range(1, case.steps + 1):
        batches = list(itertools.islice(stream, per_step // ranks.size))
        (tokens,) = ranks.sum([sum(batch.num_labels for batch in batches)])
        done = updater.update(batches, tokens=tokens, step=step, rate=RATE)
        losses.append(float(done.sums[0] / done.sums[3]))
        norms.append(done.grad_norm)
        alphas.append(torch.cat([own.flatten() for own in model.alphas().values()]))
    with engine.whole_model() as whole:
        weights = {name: tensor.detach().clone() for name, tensor in whole.state_dict().items()}
    engine.close()
    result = {"loss": torch.tensor(losses), "norm": torch.tensor(norms), "alphas": torch.stack(alphas), "split": len(said)}
    return result | {f"weights.{name}": tensor for name, tensor in weights.items()}


@contextlib.contextmanager
def _replaced(module: torch.nn.Module, name: str, value: torch.Tensor) -> Iterator[None]:
    """Uses a plain tensor as a parameter for the time of a forward pass."""
    parameter = module._parameters.pop(name)
    setattr(module, name, value)
    try:
        yield
    finally:
        delattr(module, name)
        module._parameters[name] = parameter


def resume(out: Path, parallel: str, ranks: Ranks) -> None:
    """Trains out/recipe.yaml with two processes to step 4, with one to step 8, and with two to the end."""
    run, told = out / parallel, Trainer._told_to_stop
    for steps, size in ((4, 2), (8, 1), (12, 2)):
        if ranks.rank < size:

            def stop(trainer: Trainer, deadline: float, steps: int = steps) -> Any:
                return "SIGTERM" if trainer.progress.step == steps < 12 else told(trainer, deadline)

            Trainer._told_to_stop = stop  # type: ignore[method-assign]
            os.environ["WORLD_SIZE"] = str(size)
            train_recipe(out / "recipe.yaml", run, settings=[f"training.parallel={parallel}"], threads=1, quiet=True)
        os.environ["WORLD_SIZE"] = "2"
        ranks.share(None)
        if steps == 4 and ranks.first:
            shutil.copytree(run, out / f"{parallel}-stopped")
    Trainer._told_to_stop = told  # type: ignore[method-assign]


def attend(ranks: Ranks | None = None) -> torch.Tensor:
    """Returns attention to 29 keys, of which process 0 holds 12 and process 1 holds 17; without processes, to all of them."""
    generator = torch.Generator().manual_seed(8)
    q, k, v = (torch.randn(1, 3, length, 8, dtype=torch.float64, generator=generator) for length in (2, 29, 29))
    alpha = torch.tensor([1.0, 1.5, 2.0])
    if ranks is None:
        return attention(q, k, v, alpha=alpha, impl="reference")
    own = slice(None, 12) if ranks.first else slice(12, None)
    return sharded_attention(q, k[:, :, own], v[:, :, own], alpha=alpha)


def main() -> None:
    torch.set_num_threads(1)
    ranks, out = Ranks("cpu"), Path(sys.argv[1])
    torch.save(attend(ranks), out / f"attention.{ranks.rank}")
    for name in sys.argv[2:] or (*CASES, *RESUMED):
        if name in RESUMED:
            resume(out, name, ranks)
        else:
            torch.save(train(CASES[name], ranks), out / f"{name}.{ranks.rank}")
    ranks.close()


if __name__ == "__main__":
    main()
