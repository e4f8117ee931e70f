"""Speed of converted models relative to their own `sdpa` attention: training a Llama, reading and generating with any model.

    python experiments/hf_speed.py training
    python experiments/hf_speed.py inference --model sparse --lengths 1024 4096

Times are processor time of one thread, the best of interleaved rounds; ratios are sdpa / ours, above 1 is faster than sdpa. The
model of `training` has 6 layers, width 256 and 8 heads; `inference` takes a directory of a calibrated model.
"""

import argparse
import copy
import time
from collections.abc import Callable
from functools import partial

import torch
import transformers as t

import entformer as ef

LENGTH = 2048


def best(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Returns the least processor time of each function, called in turn."""
    found = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            began = time.process_time()
            function()
            found[name] = min(found[name], time.process_time() - began)
    return found


def training(densities: list[float], rounds: int) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8}
    config = t.LlamaConfig(vocab_size=1000, num_key_value_heads=4, max_position_embeddings=LENGTH, **sizes)
    own = t.LlamaForCausalLM(config)
    ids = torch.randint(3, 1000, (1, LENGTH))

    def step(model: t.PreTrainedModel) -> None:
        model(ids, labels=ids, use_cache=False).loss.backward()

    def report(what: str, sparse: t.PreTrainedModel) -> None:
        found = best({"sdpa": partial(step, own), "ours": partial(step, sparse)}, rounds)
        measured = ef.hf.density(sparse, ids, length=LENGTH)
        print(f"{what}: density {measured:.3f}, forward+backward ratio {found['sdpa'] / found['ours']:.2f}", flush=True)

    for init in (1.0, 1.5):
        report(f"random weights, learned alphas of {init}", ef.hf.sparsify(copy.deepcopy(own), init=init))
    for name, parameter in own.named_parameters():
        if "q_proj" in name or "k_proj" in name:  # scores of a trained model spread more than those of a random one
            parameter.data.mul_(3.0)
    sparse = ef.hf.sparsify(copy.deepcopy(own), init=1.5)
    report("spread scores, learned alphas of 1.5", sparse)
    for density in densities:
        ef.hf.calibrate(sparse, ids, density=density, length=LENGTH, queries=48, cost="js")
        report(f"spread scores, calibrated to {density}", sparse)


@torch.no_grad()
def inference(folder: str, lengths: list[int], rounds: int) -> None:
    sparse = ef.hf.load(folder)
    own = ef.hf.densify(ef.hf.load(folder))
    models = {"sdpa": own, "ours": sparse}
    ids = torch.randint(3, sparse.config.vocab_size, (1, max(lengths)), generator=torch.Generator().manual_seed(0))
    for length in lengths:
        first, last = ids[:, :length], ids[:, -1:]
        found = best({name: partial(model.model, first) for name, model in models.items()}, max(rounds // 4, 1))
        print(f"{length} tokens: prefill ratio {found['sdpa'] / found['ours']:.2f}", flush=True)
        caches = {name: model.model(first).past_key_values for name, model in models.items()}
        steps = {name: partial(model.model, last, past_key_values=caches[name]) for name, model in models.items()}
        found = best(steps, 8 * rounds)
        print(f"{length} tokens: decoding ratio {found['sdpa'] / found['ours']:.2f}, {1e3 * found['ours']:.0f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("training", "inference"))
    parser.add_argument("--model", help="a directory of a calibrated decoder, for inference")
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 4096])
    parser.add_argument("--densities", nargs="*", type=float, default=[0.5, 0.3, 0.1], help="for training")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "training":
        training(given.densities, given.rounds)
    elif given.model is None:
        parser.error("inference needs --model")
    else:
        inference(given.model, given.lengths, given.rounds)


if __name__ == "__main__":
    main()
