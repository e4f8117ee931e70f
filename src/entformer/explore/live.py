"""A page that runs a trained translation model in the browser: one HTML file, without a server or network.

It is the explorer's page with another `Api`: `explore/page/live_*.js` instead of requests. Weights are stored as half floats;
alphas, of which a small change matters, as they are.
"""

import base64
import html
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from entformer.analysis.assemble import COMPONENTS
from entformer.analysis.training_text import EDGES, TrainingText
from entformer.checkpoint import LoadedRun, RunFolder
from entformer.decoding.defaults import DecodingDefaults, decoding_of_run
from entformer.errors import ArgumentError
from entformer.explore.page import ICON, OWN_STYLES, STYLES, own_file
from entformer.explore.translation_engine import TranslationEngine
from entformer.models.override import takes_alpha
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.alpha import learned_alphas
from entformer.pages import POLICY, data_text, fill_page, page_file
from entformer.text.sentencepiece_model import uses_plain_bpe
from entformer.text.tokenizer import SubwordTokenizer

MOST_PARAMETERS = 20_000_000  # a page of 54 MB, and a second for every word
MAX_TOKENS = 100
MEASURES = ("density", "support", "effective_keys", "entropy")  # those that live_api.js computes
SCRIPTS = ("words.js", "translations.js", "alignment.js", "changes.js", "facts.js")
LIVE_SCRIPTS = ("live_tokenizer.js", "live_model.js", "live_search.js", "live_api.js")


def live_page(
    run: LoadedRun,
    *,
    name: str,
    examples: Sequence[str] = (),
    folder: RunFolder | None = None,
    training_text: TrainingText | None = None,
) -> str:
    """Returns the page of a run.

    Args:
        run: The run.
        name: Title of the page.
        examples: Sentences to try.
        folder: The run directory, for its decoding defaults and how its alphas were learned.
        training_text: What the model was trained on, to mark words that it has not seen.

    Raises:
        ArgumentError: The page cannot run this model.
    """
    decoding = DecodingDefaults() if folder is None else decoding_of_run(folder.path)
    engine = TranslationEngine(
        run,
        name=name,
        max_tokens=MAX_TOKENS,
        seconds=60.0,
        examples=examples,
        folder=folder,
        training_text=training_text,
    )
    facts = engine.facts.model_dump(mode="json")
    facts["measures"]["heads"] = [measure for measure in facts["measures"]["heads"] if measure["name"] in MEASURES]
    content = {
        "facts": facts,
        "decoding": {"length_penalty": decoding.length_penalty, "length_penalty_alpha": decoding.length_penalty_alpha},
        "tokenizer": {"model": _encoded(_plain_bpe(run.subwords)), "lowercase": bool(run.info.get("lowercase"))},
        "model": _model(run.model),
        "words": None if training_text is None else {"known": sorted(training_text.words), "edges": EDGES},
    }
    parts = {
        "title": html.escape(name),
        "policy": f"{POLICY}\n{ICON}",
        "made": "entformer live",
        "about": own_file("about_live.html"),
        "style": "\n".join([*map(page_file, STYLES), *map(own_file, OWN_STYLES)]),
        "script": "\n".join([*map(page_file, COMPONENTS), *map(own_file, (*LIVE_SCRIPTS, *SCRIPTS, "explore.js"))]),
        "data": f'<script type="application/json" id="entformer-data">{data_text(content)}</script>',
    }
    return fill_page(own_file("page.html"), parts)


def stored_parameters(model: Seq2Seq) -> Mapping[str, torch.Tensor]:
    """Returns the parameters that a page stores as half floats: all but those of learned alphas."""
    alphas = {id(owner.parameter) for owner in learned_alphas(model)}
    return {name: parameter.detach() for name, parameter in model.named_parameters() if id(parameter) not in alphas}


def _model(model: Seq2Seq) -> dict[str, Any]:
    """Returns what live_model.js reads: {"config", "layers", "tensors": [[name, size]], "weights": base64 of half floats}."""
    layers = {}
    for attn_type, layer, attention in model.attention_layers():
        alphas = attention.alphas
        if alphas is None or not takes_alpha(attention) or attention.scaling is not None or attention.norm is not None:
            raise ArgumentError(
                f"a live page runs softmax and alpha-entmax attention without scaling or output norm; {attn_type} attention of "
                f"this run ({attention.normalizer}) is another. Look at it with `entformer explore`."
            )
        slopes = None if attention.slopes is None else attention.slopes.tolist()
        layers[f"{attn_type}.{layer}"] = {"alphas": alphas.tolist(), "slopes": slopes}
    stored = stored_parameters(model)
    count = sum(parameter.numel() for parameter in stored.values())
    if count > MOST_PARAMETERS:
        raise ArgumentError(
            f"a live page holds at most {MOST_PARAMETERS:,} parameters, and this model has {count:,}; "
            "look at it with `entformer explore`."
        )
    halves = torch.cat([parameter.flatten().half() for parameter in stored.values()]).cpu()
    if not bool(halves.isfinite().all()):
        raise ArgumentError("the weights of this run are not finite as half floats, which a live page stores.")
    return {
        "config": model.config.to_dict(),
        "layers": layers,
        "tensors": [[name, parameter.numel()] for name, parameter in stored.items()],
        "weights": _encoded(halves.numpy().astype("<f2").tobytes()),
    }


def _plain_bpe(subwords: SubwordTokenizer) -> bytes:
    if not uses_plain_bpe(subwords.model):
        raise ArgumentError(
            "a live page encodes text by byte-pair encoding without normalization, as `entformer prep` trains it; this run has "
            "another sentencepiece model. Look at it with `entformer explore`."
        )
    return subwords.model


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
