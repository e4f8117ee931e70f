"""Steps of the solver of the Triton kernels per block of queries, counted in Triton's interpreter: the table of docs/gpu.md.

    python benchmarks/gpu_steps.py [--model DIRECTORY --text FILE]

Rows are normal scores and, with a decoder of transformers, queries and keys of its attention on a text (gzip or plain), in the
trained softmax model: two heads of each of four layers, the last 64 of 512 tokens. A cell has the mean of float16 and, in
parentheses, of float32. Takes some minutes of one processor core.
"""

import argparse
import gzip
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import torch
from torch import Tensor

import entformer as ef
from entformer.kernels.attention.triton import launch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "parity"))
importlib.import_module("interpreted")  # makes the interpreter faster

ALPHAS = (1.25, 1.5, 1.75, 2.0)
KEYS = 512


def steps(q: Tensor, k: Tensor, dtype: torch.dtype, **how: Any) -> list[float]:
    """Returns the mean number of steps for each alpha; q and k (heads, length, size)."""
    n = len(ALPHAS)
    query, key = (t.to(dtype)[:, None].expand(-1, n, -1, -1) for t in (q, k))
    with launch.counting() as counts:
        ef.attention(query, key, key, alpha=torch.tensor(ALPHAS), impl="triton", **how)
    return counts[0][..., 1].float().mean((0, 2)).tolist()


def random_scores() -> Iterator[tuple[str, Tensor, Tensor, dict[str, Any]]]:
    generator = torch.Generator().manual_seed(0)
    for spread in (0.2, 1.0, 4.0):
        q, k = (torch.randn(1, n, 64, generator=generator) for n in (64, KEYS))
        yield f"normal, spread {spread:g}, {KEYS} keys", q, k, {"scale": spread / 8.0}


def trained_scores(folder: str, text: str) -> Iterator[tuple[str, Tensor, Tensor, dict[str, Any]]]:
    import transformers as t

    raw = Path(text).read_bytes()
    words = (gzip.decompress(raw) if text.endswith(".gz") else raw).decode("utf-8")
    ids = t.AutoTokenizer.from_pretrained(folder)(words[len(words) // 4 :][: 8 * KEYS])["input_ids"][:KEYS]
    found: list[tuple[Tensor, Tensor]] = []

    def record(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any) -> Any:
        found.append((query[0].detach(), key[0].detach()))
        return t.integrations.sdpa_attention.sdpa_attention_forward(module, query, key, value, attention_mask, **more)

    t.AttentionInterface.register("recorded", record)
    t.AttentionMaskInterface.register("recorded", t.masking_utils.sdpa_mask)
    model = t.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="recorded")
    with torch.no_grad():
        model(torch.tensor([ids]))
    for layer in sorted({0, len(found) // 3, 2 * len(found) // 3, len(found) - 1}):
        query, key = found[layer]
        heads = torch.tensor([0, query.shape[0] // 2])
        own = key[heads // (query.shape[0] // key.shape[0])]
        yield f"layer {layer}", query[heads, -64:], own, {"is_causal": True, "causal_offset": KEYS - 64}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a directory of save_pretrained")
    parser.add_argument("--text", help="what the model reads")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| scores | {' | '.join(f'alpha {alpha:g}' for alpha in ALPHAS)} |\n|---|{'---|' * len(ALPHAS)}")
    cases = [random_scores()] + ([trained_scores(given.model, given.text)] if given.model else [])
    for case in cases:
        for name, q, k, how in case:
            half, single = (steps(q, k, dtype, **how) for dtype in (torch.float16, torch.float32))
            print(f"| {name} | {' | '.join(f'{a:.1f} ({b:.1f})' for a, b in zip(half, single, strict=True))} |", flush=True)


if __name__ == "__main__":
    main()
