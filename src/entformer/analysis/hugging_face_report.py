"""The data of a report (see `data.py`) on a Hugging Face model."""

from collections.abc import Iterable
from typing import Any

from entformer.analysis.data import Progress, make_report
from entformer.analysis.hugging_face import HuggingFaceTokens, Tracer
from entformer.analysis.text_report import text_report
from entformer.hf.texts import model_inputs


def hf_report_data(
    model: Any,
    texts: Iterable[Any],
    *,
    name: str,
    tokenizer: Any = None,
    data_name: str = "text",
    length: int = 512,
    max_tokens: int | None = None,
    examples: int = 6,
    title: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Returns ReportData of one Hugging Face model on texts, as `entformer.hf.calibrate` takes them."""
    inputs = model_inputs(model, texts, tokenizer=tokenizer, length=length, max_tokens=max_tokens)
    tracer, tokens = Tracer(model, inputs[0]), HuggingFaceTokens(tokenizer)
    shown: dict[str, Any] = {"data_name": data_name, "examples": examples, "progress": progress}
    run = text_report(tracer, inputs, name=name, tokens=tokens, **shown)
    return make_report([run | {"settings": _settings(model)}], title)


def _settings(model: Any) -> dict[str, Any]:
    """Returns the settings that a page lists."""
    config: Any = getattr(model, "get_base_model", lambda: model)().config
    named = {
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "layers": getattr(config, "num_hidden_layers", None),
        "heads": getattr(config, "num_attention_heads", None),
    }
    settings = getattr(config, "entformer", None) or {}
    named |= {f"calibration.{key}": value for key, value in settings.get("calibration", {}).items()}
    return {key: value for key, value in named.items() if value is not None}
