#!/usr/bin/env python3
"""Print which Hugging Face models `entformer.hf.sparsify` converts and which it refuses, as a Markdown table.

    python scripts/hf_models.py

Tiny random models of every family in tests/unit/hf/tiny_models.py are converted, offline.
"""

import importlib.util
import warnings
from pathlib import Path

import transformers

from entformer import hf

MODELS = Path(__file__).resolve().parents[1] / "tests" / "unit" / "hf" / "tiny_models.py"


def main() -> None:
    spec = importlib.util.spec_from_file_location("tiny_models", MODELS)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{MODELS} cannot be imported")
    families = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(families)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    print("| model | attention modules | result |\n|---|---|---|")
    for name in (*families.MODELS, *families.OTHERS, *families.REFUSED):
        model = families.tiny(name)
        try:
            hf.sparsify(model)
        except hf.UnsupportedModel as err:
            modules, result = "", f"refused: {err.reasons[-1]}"
        else:
            counts: dict[str, int] = {}
            for entry in model.config.entformer["modules"].values():
                counts[entry["kind"]] = counts.get(entry["kind"], 0) + 1
            modules, result = ", ".join(f"{count} {kind}" for kind, count in counts.items()), "converted"
        print(f"| `{type(model).__name__}` | {modules} | {result} |", flush=True)


if __name__ == "__main__":
    main()
