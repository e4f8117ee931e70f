"""Compares the windowed cache with the full cache on a trained run of `entformer longctx`: equality, memory, time.

    python benchmarks/window_cache.py longctx-copy/runs/entmax_nape_0 --length 16384 --steps 64

The model reads a prompt of the task (BOS source SEP), then the following tokens one by one, with each cache. Scores of every
step are compared bitwise. The two decoders alternate at every token; the ratio is that of their median times. See nn/window.py.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from entformer.bench.harness import get_signature
from entformer.errors import DataError
from entformer.longcontext.registry import TaskConfig
from entformer.longcontext.train import RunSpec, build
from entformer.models.lm import CausalLM, LMState


def load(folder: Path) -> tuple[Any, CausalLM]:
    """Returns the task and the trained model of a run directory METHOD_POSITIONS_SEED."""
    try:
        held = torch.load(folder / "state.pt", weights_only=True)
    except OSError as err:
        raise DataError(f"{folder / 'state.pt'} cannot be read ({err.strerror}); pass a directory in runs/.") from err
    method, positions, seed = folder.resolve().name.rsplit("_", 2)
    task, model = build(TaskConfig(**held["recipe"]), RunSpec(method, positions, int(seed)))
    if not isinstance(model, CausalLM):
        raise DataError(f"{folder} is a run of a task without a decoder.")
    model.load_state_dict(held["model"])
    return task, model.eval()


def prefill(model: CausalLM, prompt: torch.Tensor, windowed: bool) -> tuple[LMState, torch.Tensor, float]:
    """Returns the state after the prompt, the scores, and the time in seconds."""
    state = model.start(windowed=windowed)
    begun = time.perf_counter()
    scores = model.step(prompt, state)
    return state, scores, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, help="run directory in runs/ of a sweep")
    parser.add_argument("--length", type=int, default=16_384, help="prompt length in tokens")
    parser.add_argument("--steps", type=int, default=64, help="decoded tokens")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    requested = parser.parse_args()
    torch.set_num_threads(requested.threads)
    task, model = load(requested.run)
    sample = task.sample(requested.batch, requested.length - 2, torch.Generator().manual_seed(1))
    prompt, after = (
        sample.inputs[:, : requested.length],
        sample.inputs[:, requested.length : requested.length + requested.steps],
    )

    caches = {"full": False, "window": True}
    states, scores, seconds = {}, {}, {}
    for name, windowed in caches.items():
        states[name], scores[name], seconds[name] = prefill(model, prompt, windowed)
    equal = [bool(torch.equal(scores["full"], scores["window"]))]
    gap = float((scores["full"] - scores["window"]).abs().max())
    samples: dict[str, list[float]] = {"full": [], "window": []}
    for step in range(after.shape[1]):
        order = list(caches) if step % 2 else list(caches)[::-1]
        for name in order:
            begun = time.perf_counter()
            scores[name] = model.step(after[:, step], states[name])
            samples[name].append(time.perf_counter() - begun)
        equal.append(bool(torch.equal(scores["full"], scores["window"])))
        gap = max(gap, float((scores["full"] - scores["window"]).abs().max()))

    held = {name: state.bytes for name, state in states.items()}
    times = {name: median(own) for name, own in samples.items()}
    found = {
        "run": requested.run.resolve().name,
        "task": str(task),
        "length": prompt.shape[1],
        "batch": requested.batch,
        "windows": model.windows(),
        "scores compared": len(equal),
        "bit for bit equal": sum(equal),
        "largest difference": gap,
        "cache bytes": held | {"ratio": held["window"] / held["full"]},
        "decode ms": {name: 1e3 * own for name, own in times.items()} | {"ratio": times["window"] / times["full"]},
        "prefill s": seconds,
        "measured with": str(get_signature()),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
