"""Benchmarks `analysis.collect`: time and memory relative to computing the loss.

    python benchmarks/collect_speed.py [--sentences 1000] [--repeats 7] [--memory 250,1000] [--threads 1]

A Transformer-Tiny (4 + 4 layers, 4 heads) with random weights runs teacher-forced on random sentences with the lengths of
Multi30k: once for its loss and once for every measure of every head. Times are processor times of interleaved runs; the
ratio is the median. Peak memory is measured in a new process per number of sentences.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from entformer.analysis.collect import collect
from entformer.data.batching import TokenBatches
from entformer.data.store import TokenStore
from entformer.models.config import PRESETS, AttentionConfig, Seq2SeqConfig
from entformer.models.seq2seq import KINDS, Seq2Seq
from entformer.text.tokenizer import NUM_SPECIAL_TOKENS, SubwordTokenizer

NORMALIZERS = {
    "softmax": AttentionConfig(normalizer="softmax"),
    "entmax, learned alpha": AttentionConfig(normalizer="entmax", alpha="learned"),
    "ReLA": AttentionConfig(normalizer="rela"),
}
VOCABULARY = 9712  # of the Multi30k recipes; the loss has to choose from so many
WORDS = "a man in an orange hat is looking at something ; two dogs play , what does the red-haired woman see in the house ?"
TOKENS = 4096  # of a batch, as in a report


def make_model(normalizer: str) -> Seq2Seq:
    torch.manual_seed(1)
    kinds = dict.fromkeys(KINDS, NORMALIZERS[normalizer])
    model = Seq2Seq(Seq2SeqConfig.from_dict({"vocab_size": VOCABULARY, **PRESETS["tiny"], **kinds})).eval()
    with torch.no_grad():  # untrained weights give nearly even rows; larger ones give rows like those of trained heads
        for _, _, module in model.attention_layers():
            for parameter in module.parameters():
                if parameter.dim() >= 2:
                    parameter.mul_(2.0)
    return model


def make_store(sentences: int, vocabulary: int) -> TokenStore:
    """Lengths as in Multi30k with 10k merges: 13 tokens, more or less, on either side."""
    rng = np.random.default_rng(1)
    lengths = np.clip(np.rint(rng.normal(13.5, 4.5, size=(sentences, 2))), 4, 40).astype(int)
    return TokenStore.from_examples(
        tuple(rng.integers(NUM_SPECIAL_TOKENS, vocabulary, size=length).astype(np.int32) for length in pair) for pair in lengths
    )


def evaluate(model: Seq2Seq, store: TokenStore) -> None:
    with torch.no_grad():
        for batch in TokenBatches(store, tokens=TOKENS, shuffle=False).epoch(0):
            model.loss(batch)


def measure(model: Seq2Seq, store: TokenStore, subwords: SubwordTokenizer) -> None:
    batches = TokenBatches(store, tokens=TOKENS, shuffle=False).epoch(0)
    collect(model, batches, subwords=subwords, languages=("en", "de"), examples=12)


def seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def peak_of(normalizer: str, sentences: int, threads: int) -> float:
    """Megabytes at most, of a process that does nothing else."""
    command = [sys.executable, __file__, "--only", normalizer, "--sentences", str(sentences), "--threads", str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--memory", default="250,1000", help="numbers of sentences, or nothing")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=NORMALIZERS, help=argparse.SUPPRESS)  # collect once and print the peak
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    subwords = SubwordTokenizer.train([WORDS] * 20, vocab_size=320)
    store = make_store(options.sentences, subwords.size)
    if options.only:
        measure(make_model(options.only), store, subwords)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    print(f"{options.sentences} sentences, {options.threads} thread(s), median of {options.repeats} turns")
    print(f"{'':<23}{'reading, s':>12}{'collecting, s':>15}{'ratio':>8}{'worst':>8}")
    for name in NORMALIZERS:
        model = make_model(name)
        both = partial(evaluate, model, store), partial(measure, model, store, subwords)
        turns = [[seconds(work) for work in both] for _ in range(options.repeats + 1)][1:]  # the first one warms up
        ratios = [collecting / reading for reading, collecting in turns]
        middle = [statistics.median(turn[which] for turn in turns) for which in (0, 1)]
        print(f"{name:<23}{middle[0]:>12.2f}{middle[1]:>15.2f}{statistics.median(ratios):>8.2f}{max(ratios):>8.2f}")
    sizes = [int(size) for size in options.memory.split(",") if size]
    for name in NORMALIZERS if sizes else ():
        peaks = ", ".join(f"{size} sentences {peak_of(name, size, options.threads):.0f} MB" for size in sizes)
        print(f"peak memory, {name}: {peaks}")


if __name__ == "__main__":
    main()
