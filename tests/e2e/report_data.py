"""Report data without a model: scores with the shapes that heads have, weights by `entformer.entmax`, random measures.

`DATA` has runs with a learned alpha, a fixed one and softmax; `long_report_data()` one run with a 512-token sentence.
"""

import base64
import math
from typing import Any

import numpy as np
import torch

from entformer import entmax
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


def pieces(text: str) -> list[str]:
    """Pieces as sentencepiece writes them; long words are cut."""
    found = []
    for word in text.split():
        cuts = [word[start : start + 6] for start in range(0, len(word), 6)]
        found += [f"▁{cuts[0]}", *cuts[1:]]
    return found


def head_scores(rows: int, columns: int, role: int, rng: np.random.Generator) -> Numbers:
    """(rows, columns): heads that look at a fixed offset, along the diagonal, at the end, or broadly."""
    query = np.arange(rows)[:, None] * (columns / rows)
    key = np.arange(columns)[None, :]
    noise = rng.normal(size=(rows, columns))
    if role == 0:
        return 3.5 * (np.abs(query - 1 - key) < 0.6) + 0.5 * noise
    if role == 1:
        return -0.5 * np.abs(query - key) + 0.8 * noise
    if role == 2:
        return 2.5 * (key == columns - 1) + 0.7 * noise
    return 0.9 * noise


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
    source, target = [*pieces(pair[0]), "</s>"], ["<s>", *pieces(pair[1]), "</s>"]
    shapes = {"encoder": (len(source),) * 2, "decoder": (len(target) - 1,) * 2, "cross": (len(target) - 1, len(source))}
    short = max(len(source), len(target)) <= 40
    heads = {}
    for attn_type in ATTENTION_TYPES:
        for (layer, head), alpha in np.ndenumerate(alphas[attn_type]):
            scores = head_scores(*shapes[attn_type], role=(layer + head) % 4, rng=rng)
            heads[f"{attn_type}.{layer}.{head}"] = head_rows(scores, float(alpha), attn_type == "decoder", short)
    texts = {"source_text": pair[0], "target_text": pair[1], "source": source, "target": target}
    return {"id": number, **texts, "why": pair[2], "heads": heads}


def make_head(
    attn_type: str, layer: int, head: int, path: list[float], learned: bool, rng: np.random.Generator
) -> dict[str, Any]:
    alpha = path[-1]
    density = float(np.clip(1.25 - 0.62 * alpha + 0.1 * rng.normal(), 0.05, 1.0)) if alpha > 1 else 1.0
    densities = np.clip(rng.normal(density, 0.12, size=2000), 0.02, 0.999) if alpha > 1 else np.full(2000, 0.999)
    absent = SELF_ATTENTION if attn_type == "cross" else ("aer",)
    values = {
        measure.name: None if measure.name.startswith(absent) else float(rng.uniform(0.05, 0.95)) for measure in HEAD_MEASURES
    }
    role = (layer + head) % 4
    roles = []
    if role == 0 and attn_type != "cross":
        roles.append({"role": "previous token", "score": values["positional.-1"], "examples": [1, 3]})
    if role == 2 and attn_type == "encoder":
        roles.append({"role": "interrogation", "score": values["interrogation"], "examples": [0]})
    return {
        **{"attn_type": attn_type, "layer": layer, "head": head, "roles": roles},
        **values,
        "alpha": alpha if learned else None,
        "alpha_initial": path[0] if learned else None,
        "density": density,
        "density_histogram": np.histogram(densities, bins=20, range=(0, 1))[0].tolist(),
        "null_rate": 0.0,
    }


def make_layer(attn_type: str, layer: int, heads: list[dict[str, Any]], rng: np.random.Generator) -> dict[str, Any]:
    densities = [head["density"] for head in heads if (head["attn_type"], head["layer"]) == (attn_type, layer)]
    values = {measure.name: float(rng.uniform(0.1, 0.9)) for measure in LAYER_MEASURES}
    own = {"density": float(np.mean(densities)), "union_density": min(1.0, 1.5 * max(densities)), "null_rate": 0.0}
    return {"attn_type": attn_type, "layer": layer, **values, **own}


def make_run(run_name: str, normalizer: str, alpha: float | None, layers: int, heads: int, seed: int) -> dict[str, Any]:
    """alpha None: learned, another one for every head."""
    rng = np.random.default_rng(seed)
    shape = (len(ATTENTION_TYPES), layers, heads)
    final = np.full(shape, alpha) if alpha else rng.uniform(1.3, 1.98, shape)
    start = 1.5 + 0.1 * rng.normal(size=shape)
    fade = np.exp(-np.array(STEPS) / 1500) - math.exp(-STEPS[-1] / 1500)
    paths = dict(zip(ATTENTION_TYPES, (final[..., None] + (start - final)[..., None] * fade).tolist(), strict=True))
    found = [
        make_head(attn_type, layer, head, path, alpha is None, rng)
        for attn_type in ATTENTION_TYPES
        for layer, own in enumerate(paths[attn_type])
        for head, path in enumerate(own)
    ]
    alphas = dict(zip(ATTENTION_TYPES, final, strict=True))
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
        "heads": found,
        "layers": [make_layer(attn_type, layer, found, rng) for attn_type in ATTENTION_TYPES for layer in range(layers)],
        "alignment": {
            "best_head": {"layer": 1, "head": 2, **rate},
            "best_layer": {"layer": 1, **rate},
            "averaged": rate,
            "averaged_raw": {**rate, "aer": 0.42},
        },
        "varied": [{"attn_type": "encoder", "layer": 1, "head": 0, "sparse": 1, "dense": 3, "densities": [0.11, 0.42]}],
        "sentences": [make_sentence(10 + number, pair, alphas, rng) for number, pair in enumerate(PAIRS)],
    }


def wrap(runs: list[dict[str, Any]]) -> dict[str, Any]:
    measures = {"heads": HEAD_MEASURES, "layers": LAYER_MEASURES}
    return {
        "version": 3,
        "title": "Multi30k, three ways to attend",
        "created": "2025-01-31",
        "entformer": "0.1.0",
        "measures": {level: [measure.to_dict() for measure in own] for level, own in measures.items()},
        "runs": runs,
    }


def report_data(layers: int = 3, heads: int = 4) -> dict[str, Any]:
    plans = (("learned alpha", "entmax", None), ("entmax15", "entmax15", 1.5), ("softmax", "softmax", 1.0))
    return wrap([make_run(*plan, layers, heads, seed) for seed, plan in enumerate(plans, start=1)])


def long_report_data(tokens: int = 512, layers: int = 4, heads: int = 4) -> dict[str, Any]:
    """A run whose first sentence has `tokens` tokens on both sides, without scores, as reports store long sentences."""
    run = make_run("learned alpha", "entmax", None, layers, heads, seed=1)
    rng = np.random.default_rng(5)
    alphas = {attn_type: np.full((layers, heads), 1.6) for attn_type in ATTENTION_TYPES}
    words = " ".join(f"w{number}" for number in range(tokens - 1))
    run["sentences"].insert(0, make_sentence(99, (words, words, "longest"), alphas, rng))
    return wrap([run])


DATA = report_data()
LEARNED = DATA["runs"][0]
