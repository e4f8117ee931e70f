"""ReportData made up for tests: no model, but scores with the shapes heads really have, and weights by `entformer.entmax`.

`report_data()` gives runs with a softmax, a fixed and a learned alpha; `long_report_data()` one run with a 512-token sentence.
"""

import base64
import math
from typing import Any

import numpy as np
import torch

from entformer import entmax
from entformer.analysis.measures import HEAD_MEASURES, LAYER_MEASURES

ATTENTION_TYPES = ("encoder", "decoder", "cross")
STEPS = [0, 100, 200, 400, 800, 1600, 3200, 4800, 6400, 8000]
LEVELS = 32000  # of the 16-bit scores to either side of zero
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


def store_scores(scores: Numbers, allowed: Numbers) -> dict[str, Any]:
    """16-bit levels, little-endian, -32768 where masked."""
    visible = scores[allowed]
    offset = float(visible.max() + visible.min()) / 2
    scale = float(visible.max() - visible.min()) / (2 * LEVELS) or 1.0
    levels = np.where(allowed, np.round((scores - offset) / scale), -32768).astype("<i2")
    rows, columns = scores.shape
    data = base64.b64encode(levels.tobytes()).decode()
    return {"rows": rows, "columns": columns, "scale": scale, "offset": offset, "data": data}


def read_scores(stored: dict[str, Any]) -> Numbers:
    levels = np.frombuffer(base64.b64decode(stored["data"]), dtype="<i2").reshape(stored["rows"], stored["columns"])
    return np.where(levels == -32768, -math.inf, levels * stored["scale"] + stored["offset"])


def head_rows(scores: Numbers, alpha: float, causal: bool, keep_scores: bool) -> dict[str, Any]:
    allowed = np.tril(np.ones(scores.shape, dtype=bool)) if causal else np.ones(scores.shape, dtype=bool)
    stored = store_scores(scores, allowed)
    exact = torch.from_numpy(read_scores(stored))  # so that the page can compute the same weights
    weights = entmax(exact, alpha=alpha).numpy()
    row, col = np.nonzero(weights)
    crow = np.concatenate([[0], np.bincount(row, minlength=len(weights)).cumsum()])
    weight = [float(f"{value:.4g}") for value in weights[row, col]]
    return {"crow": crow.tolist(), "col": col.tolist(), "weight": weight, "scores": stored if keep_scores else None}


def make_sentence(
    number: int, pair: tuple[str, str, str], alphas: dict[str, Numbers], rng: np.random.Generator
) -> dict[str, Any]:
    source, target = [*pieces(pair[0]), "</s>"], ["<s>", *pieces(pair[1]), "</s>"]
    shapes = {"encoder": (len(source),) * 2, "decoder": (len(target) - 1,) * 2, "cross": (len(target) - 1, len(source))}
    short = max(len(source), len(target)) <= 40
    heads = {}
    for attn_type in ATTENTION_TYPES:
        for layer, head in np.ndindex(alphas[attn_type].shape):
            scores = head_scores(*shapes[attn_type], role=(layer + head) % 4, rng=rng)
            heads[f"{attn_type}.{layer}.{head}"] = head_rows(
                scores, float(alphas[attn_type][layer, head]), attn_type == "decoder", short
            )
    return {
        "id": number,
        "source_text": pair[0],
        "target_text": pair[1],
        "source": source,
        "target": target,
        "why": pair[2],
        "heads": heads,
    }


def make_head(attn_type: str, layer: int, head: int, alpha: float, learned: bool, rng: np.random.Generator) -> dict[str, Any]:
    density = float(np.clip(1.25 - 0.62 * alpha + 0.1 * rng.normal(), 0.05, 1.0)) if alpha > 1 else 1.0
    rows = np.clip(rng.normal(density, 0.12, size=2000), 0.02, 0.999) if alpha > 1 else np.full(2000, 0.999)
    role = (layer + head) % 4
    small, other = (float(value) for value in 0.1 * rng.random(2))
    before = 0.9 - 0.2 * abs(2 - alpha) + small if role == 0 else small
    itself = 0.6 + 3 * other if role == 1 else other
    roles = []
    if role == 0 and attn_type != "cross":
        roles.append({"role": "previous token", "score": before, "examples": [1, 3]})
    if role == 2 and attn_type == "encoder":
        roles.append({"role": "interrogation", "score": 0.71, "examples": [0]})
    cross = attn_type == "cross"
    return {
        "attn_type": attn_type,
        "layer": layer,
        "head": head,
        "alpha": alpha if learned else None,
        "density": density,
        "density_histogram": np.histogram(rows, bins=20, range=(0, 1))[0].tolist(),
        "support": 14 * density,
        "entropy": math.log(1 + 9 * density),
        "effective_keys": 1 + 9 * density,
        "null_rate": 0.0,
        "positional.-1": None if cross else before,
        "positional.0": None if cross else itself,
        "positional.1": None if cross else 0.1 * float(rng.random()),
        "first_key": float(other),
        "last_key": 0.8 if role == 2 else float(small),
        "density_spread": density / 2,
        "merging": 0.5 * itself if attn_type == "encoder" else None,
        "merging_with_self": itself if attn_type == "encoder" else None,
        "interrogation": (0.71 if role == 2 else 0.1) if attn_type == "encoder" else None,
        "interrogation_contrast": 0.05 if attn_type == "encoder" else None,
        "aer": 0.4 + 0.5 * float(rng.random()) if cross else None,
        "aer_shifted": 0.3 + 0.5 * float(rng.random()) if cross else None,
        "roles": roles,
    }


def make_run(run_name: str, normalizer: str, alpha: float | None, layers: int, heads: int, seed: int) -> dict[str, Any]:
    """alpha None: learned, another one for every head."""
    rng = np.random.default_rng(seed)
    shape = (layers, heads)
    alphas = {
        attn_type: np.full(shape, alpha) if alpha else 1 + rng.beta(1.1, 0.9, size=shape) for attn_type in ATTENTION_TYPES
    }
    start = 1.5 + 0.1 * rng.normal(size=(len(ATTENTION_TYPES), *shape))
    paths = {
        name: [
            [
                [float(alphas[name][at] + (start[index][at] - alphas[name][at]) * math.exp(-step / 1500)) for step in STEPS]
                for at in ((layer, head) for head in range(heads))
            ]
            for layer in range(layers)
        ]
        for index, name in enumerate(ATTENTION_TYPES)
    }
    found = [
        make_head(attn_type, *at, alpha=float(alphas[attn_type][at]), learned=alpha is None, rng=rng)
        for attn_type in ATTENTION_TYPES
        for at in np.ndindex(shape)
    ]
    for head in found:
        path = paths[head["attn_type"]][head["layer"]][head["head"]]
        head["alpha_initial"] = path[0] if alpha is None else None
    by_layer = []
    for attn_type in ATTENTION_TYPES:
        for layer in range(layers):
            densities = [head["density"] for head in found if (head["attn_type"], head["layer"]) == (attn_type, layer)]
            diversity = 0.12 + 0.08 * seed + 0.05 * float(rng.random())
            union = min(1.0, 1.5 * max(densities))
            by_layer.append(
                {
                    "attn_type": attn_type,
                    "layer": layer,
                    "js_diversity_keys": diversity,
                    "js_diversity_heads": 2 * diversity,
                    "null_rate": 0.0,
                    "union_density": union,
                    "density": float(np.mean(densities)),
                }
            )
    rate = {"aer": 0.31, "rows": "shifted", "precision": 0.7, "recall": 0.68}
    return {
        "name": run_name,
        "languages": ["en", "de"],
        "normalizers": dict.fromkeys(ATTENTION_TYPES, normalizer),
        "settings": {
            "model.layers": layers,
            "model.heads": heads,
            "model.normalizer": normalizer,
            "training.lr": 0.005,
            "data.name": "multi30k",
        },
        "scores": [
            {
                "name": "test BLEU",
                "value": 38.0 + seed / 3,
                "signature": "nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:2.5.1",
                "about": "on 1,000 sentences of the test set",
            },
            {
                "name": "validation BLEU",
                "value": 41.2 + seed / 5,
                "signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1",
                "about": "on the validation set",
            },
        ],
        "step": STEPS[-1],
        "data": {"sentences": 1000, "source_tokens": 15203, "target_tokens": 15611, "name": "test2016"},
        "alpha_steps": STEPS if alpha is None else None,
        "alpha_paths": paths if alpha is None else None,
        "alpha_correlation": {"all": 0.93, "encoder": 0.9} if alpha is None else None,
        "alpha_marks": {"encoder.0.1": "at 1"} if alpha is None else {},
        "alpha_gradients": None,
        "alpha_sentence": "After 8,000 steps alphas correlate 0.93 with their random initialization."
        if alpha is None
        else None,
        "positional_heads": [
            {"offset": -1, "heads": ["encoder.0.0", "decoder.0.0", "encoder.1.3"], "median_confidence": 0.935},
            {"offset": 0, "heads": ["encoder.0.1"], "median_confidence": 0.75},
            {"offset": 1, "heads": [], "median_confidence": None},
        ],
        "heads": found,
        "layers": by_layer,
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
    return {
        "version": 3,
        "title": "Multi30k, three ways to attend",
        "created": "2025-01-31",
        "entformer": "0.1.0",
        "measures": {
            "heads": [measure.to_dict() for measure in HEAD_MEASURES],
            "layers": [measure.to_dict() for measure in LAYER_MEASURES],
        },
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
