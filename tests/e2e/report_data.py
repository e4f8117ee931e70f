"""Report data without a model: random scores and measures, weights by `entformer.entmax`.

`DATA` has runs with a learned alpha, a fixed one and softmax; `long_report_data()` one run with a 512-token sentence.
"""

import base64
import math
from typing import Any

import numpy as np
import torch

from entformer import entmax
from entformer.analysis.data import make_report
from entformer.analysis.measures import HEAD_MEASURES, LAYER_MEASURES
from entformer.analysis.sentence import MASKED, packed_scores
from entformer.kernels.attention.reference import to_csr

ATTENTION_TYPES = ("encoder", "decoder", "cross")
SELF_ATTENTION = ("positional.", "merging", "interrogation")  # how the names of its measures begin
STEPS = [0, 100, 200, 400, 800, 1600, 3200, 4800, 6400, 8000]
SIGNATURE = "nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:2.5.1"
Numbers = np.ndarray[Any, np.dtype[Any]]

# One text tries to become markup; the page must show it as it is.
PAIRS = [
    ("Where is the little dog that was running on the beach?", "Wo ist der kleine Hund, der am Strand lief?", "question"),
    ("Two young men are sitting in front of a coffee-house.", "Zwei junge Männer sitzen vor einem Kaffeehaus.", "sample"),
    (
        'A sign says <script>alert("x")</script> & nothing else.',
        'Auf einem Schild steht <img src=x onerror="boom()">.',
        "sample",
    ),
    (
        "A man in an orange hat is staring at something far away.",
        "Ein Mann mit einem orangefarbenen Hut starrt etwas an.",
        "longest",
    ),
]


def head_key(head: dict[str, Any]) -> str:
    return f"{head['attn_type']}.{head['layer']}.{head['head']}"


def read_scores(stored: dict[str, Any]) -> Numbers:
    levels = np.frombuffer(base64.b64decode(stored["data"]), dtype="<i2").reshape(stored["rows"], stored["columns"])
    return np.where(levels == MASKED, -math.inf, levels * stored["scale"] + stored["offset"])


def head_rows(scores: Numbers, alpha: float, causal: bool, keep_scores: bool) -> dict[str, Any]:
    stored = packed_scores(np.where(np.tril(np.ones(scores.shape)), scores, -math.inf) if causal else scores)
    weights = entmax(torch.from_numpy(read_scores(stored)), alpha=alpha)  # as the page computes them
    crow, col, weight = (part.tolist() for part in to_csr(weights))
    return {"crow": crow, "col": col, "weight": [float(f"{w:.4g}") for w in weight], "scores": stored if keep_scores else None}


def make_sentence(
    number: int, pair: tuple[str, str, str], alphas: dict[str, Numbers], rng: np.random.Generator
) -> dict[str, Any]:
    pieces = [[f"▁{word}" for word in text.split()] for text in pair[:2]]
    source, target = [*pieces[0], "</s>"], ["<s>", *pieces[1], "</s>"]
    shapes = {"encoder": (len(source),) * 2, "decoder": (len(target) - 1,) * 2, "cross": (len(target) - 1, len(source))}
    short = max(len(source), len(target)) <= 40
    heads = {
        f"{attn_type}.{layer}.{head}": head_rows(3 * rng.normal(size=shape), float(alpha), attn_type == "decoder", short)
        for attn_type, shape in shapes.items()
        for (layer, head), alpha in np.ndenumerate(alphas[attn_type])
    }
    texts = {"source_text": pair[0], "target_text": pair[1], "source": source, "target": target}
    return {"id": number, **texts, "why": pair[2], "heads": heads}


def make_head(
    attn_type: str, layer: int, head: int, path: list[float], learned: bool, rng: np.random.Generator
) -> dict[str, Any]:
    absent = SELF_ATTENTION if attn_type == "cross" else ("aer",)
    values = {
        measure.name: None if measure.name.startswith(absent) else float(rng.uniform(0.05, 0.95)) for measure in HEAD_MEASURES
    }
    values |= {
        "alpha": path[-1] if learned else None,
        "alpha_initial": path[0] if learned else None,
        "density": 1.3 - 0.6 * path[-1],
        "null_rate": 0.0,
    }
    is_role = attn_type != "cross" and (layer + head) % 4 == 0
    role = {"role": "previous token", "score": values["positional.-1"], "examples": [1, 3]}
    place = {"attn_type": attn_type, "layer": layer, "head": head}
    histogram = rng.integers(0, 100, size=20).tolist()
    return {**place, **values, "roles": [role] if is_role else [], "density_histogram": histogram}


def make_run(run_name: str, normalizer: str, alpha: float | None, layers: int, heads: int, seed: int) -> dict[str, Any]:
    """alpha None: learned, another one for every head."""
    rng = np.random.default_rng(seed)
    shape = (len(ATTENTION_TYPES), layers, heads)
    final = np.full(shape, alpha) if alpha else rng.uniform(1.3, 1.98, shape)
    paths = dict(zip(ATTENTION_TYPES, np.linspace(np.full(shape, 1.5), final, len(STEPS), axis=-1).tolist(), strict=True))
    rate = {"aer": 0.31, "rows": "shifted", "precision": 0.7, "recall": 0.68}
    learned = {
        "alpha_steps": STEPS,
        "alpha_paths": paths,
        "alpha_correlation": {"all": 0.93, "encoder": 0.9},
        "alpha_marks": {"encoder.0.1": "at 1"},
        "alpha_sentence": "After 8,000 steps alphas correlate 0.93 with their random initialization.",
    }
    return {
        "name": run_name,
        "languages": ["en", "de"],
        "normalizers": dict.fromkeys(ATTENTION_TYPES, normalizer),
        "settings": {"model.layers": layers, "model.normalizer": normalizer, "data.name": "multi30k"},
        "scores": [
            {"name": f"{name} BLEU", "value": 38.0 + seed / 3, "signature": SIGNATURE, "about": f"on the {name} set"}
            for name in ("test", "validation")
        ],
        "step": STEPS[-1],
        "data": {"sentences": 1000, "source_tokens": 15203, "target_tokens": 15611, "name": "test2016"},
        **(learned if alpha is None else dict.fromkeys(learned)),
        "positional_heads": [
            {"offset": -1, "heads": ["encoder.0.0", "decoder.0.0", "encoder.1.3"], "median_confidence": 0.935},
            {"offset": 0, "heads": ["encoder.0.1"], "median_confidence": 0.75},
            {"offset": 1, "heads": [], "median_confidence": None},
        ],
        "heads": [
            make_head(attn_type, layer, head, path, alpha is None, rng)
            for attn_type in ATTENTION_TYPES
            for layer, own in enumerate(paths[attn_type])
            for head, path in enumerate(own)
        ],
        "layers": [
            {"attn_type": attn_type, "layer": layer}
            | {measure.name: float(rng.uniform(0.1, 0.9)) for measure in LAYER_MEASURES}
            | {"null_rate": 0.0}
            for attn_type in ATTENTION_TYPES
            for layer in range(layers)
        ],
        "alignment": {
            "best_head": {"layer": 1, "head": 2, **rate},
            "best_layer": {"layer": 1, **rate},
            "averaged": rate,
            "averaged_raw": {**rate, "aer": 0.42},
        },
        "varied": [{"attn_type": "encoder", "layer": 1, "head": 0, "sparse": 1, "dense": 3, "densities": [0.11, 0.42]}],
        "sentences": [
            make_sentence(10 + number, pair, dict(zip(ATTENTION_TYPES, final, strict=True)), rng)
            for number, pair in enumerate(PAIRS)
        ],
    }


def report_data(layers: int = 3, heads: int = 4) -> dict[str, Any]:
    plans = (("learned alpha", "entmax", None), ("entmax15", "entmax15", 1.5), ("softmax", "softmax", 1.0))
    return make_report([make_run(*plan, layers, heads, seed) for seed, plan in enumerate(plans, start=1)], None)


def long_report_data(tokens: int = 512, layers: int = 4, heads: int = 4) -> dict[str, Any]:
    """A run whose first sentence has `tokens` tokens on both sides, without scores, as reports store long sentences."""
    run = make_run("learned alpha", "entmax", None, layers, heads, seed=1)
    alphas = {attn_type: np.full((layers, heads), 1.6) for attn_type in ATTENTION_TYPES}
    words = " ".join(f"w{number}" for number in range(tokens - 1))
    run["sentences"].insert(0, make_sentence(99, (words, words, "longest"), alphas, np.random.default_rng(5)))
    return make_report([run], None)


DATA = report_data()
LEARNED = DATA["runs"][0]
