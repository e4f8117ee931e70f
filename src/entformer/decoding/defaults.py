"""Decoding defaults of a run, from the `decoding` section of its recipe."""

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class DecodingDefaults:
    """Beam and length penalty."""

    beam: int = 5
    length_penalty: str = "average"
    length_penalty_alpha: float | None = None
    """Default: 1; must be None for "none"."""

    def changed(
        self, beam: int | None = None, length_penalty: str | None = None, length_penalty_alpha: float | None = None
    ) -> "DecodingDefaults":
        """Returns these values with the given ones replaced. Another penalty does not inherit the exponent."""
        alpha = length_penalty_alpha
        if alpha is None and length_penalty in (None, self.length_penalty):
            alpha = self.length_penalty_alpha
        return DecodingDefaults(self.beam if beam is None else beam, length_penalty or self.length_penalty, alpha)


def decoding_of_run(run: Path) -> DecodingDefaults:
    """Returns the defaults in RUN/recipe.yaml; those of `DecodingDefaults` if it is missing or damaged."""
    try:
        recipe = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
        given = recipe.get("decoding") or {}
        penalty = str(given.get("length_penalty", "average"))
        alpha = given.get("length_penalty_alpha", given.get("alpha"))  # alpha: name in older versions
        return DecodingDefaults(
            int(given.get("beam", 5)), penalty, None if penalty == "none" or alpha is None else float(alpha)
        )
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError, TypeError, ValueError):
        return DecodingDefaults()
