"""What `report`, `explore` and the demo say about learned alphas: start, marks, pull of the loss, one sentence."""

import json
import re
from pathlib import Path

import pytest
import yaml

from entformer.analysis.alphas import HeadId, alpha_marks, alpha_sentence, recent_gradients
from entformer.analysis.figures_statistics import alpha_heads
from entformer.analysis.history import learned_alphas_of
from entformer.checkpoint import RunFolder
from entformer.models.config import Seq2SeqConfig

FORMS = {"encoder": "projected", "cross": "sigmoid"}


def places(*alphas: float, kind: str = "encoder") -> dict[HeadId, float]:
    return {(kind, 0, head): alpha for head, alpha in enumerate(alphas)}


def test_heads_at_a_bound_and_in_the_tail_are_marked() -> None:
    final = places(1.0, 1.0005, 1.01, 1.5, 2.0) | places(1.01, 1.99, 1.1, kind="cross") | places(1.0, kind="decoder")
    assert alpha_marks(final, FORMS) == {
        "encoder.0.0": "at 1",
        "encoder.0.1": "at 1",
        "encoder.0.4": "at 2",
        "cross.0.0": "sigmoid tail",
        "cross.0.1": "sigmoid tail",
    }


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        ((1.2, 1.5, 1.8), (1.1, 1.4, 1.7), r"After 1,800 steps alphas correlate 1.00 with .*: they tell where heads started"),
        ((1.2, 1.5, 1.8, 1.4), (1.4, 1.3, 1.5, 1.1), r"correlate 0.41 .*: part of them is still the start"),
        ((1.2, 1.5, 1.8), (1.6, 1.0, 1.5), r"-0.16 .*: little of the start is left; 1 of 3 heads is at the bound 1"),
        ((1.2, 1.5, 1.8), (1.0, 1.0, 1.0), r"show nothing of their random init.*; 3 of 3 heads are at the bound 1"),
        ((1.5, 1.5, 1.5), (1.4, 1.2, 2.0), r"All alphas started at 1.50; after 1,800 .* between 1.20 and 2.*bound 2"),
    ],
)
def test_one_sentence_tells_learned_from_initial(start: tuple[float, ...], end: tuple[float, ...], told: str) -> None:
    text = alpha_sentence(places(*start), places(*end), FORMS, step=1800) or ""
    assert re.search(rf"{told}.*; the loss alone decided about sparsity\.$", text)


def test_the_sentence_says_what_was_asked_for() -> None:
    text = alpha_sentence(places(1.2, 1.3, 1.9), places(1.7, 1.6, 1.9), FORMS, step=10, target="0.4")
    assert text is not None
    assert text.endswith("training asked for a density (share of keys with nonzero weight) of 0.4.")
    text = alpha_sentence(places(1.2, 1.3), places(1.7, 1.6), FORMS, step=10, target="0.4", reached="0.39 on valid")
    assert text is not None
    assert text.endswith(" of 0.4; it is 0.39 on valid.")
    assert alpha_sentence({}, places(1.2), FORMS, step=10) is None
    few = alpha_sentence(places(1.2, 1.8), places(1.3, 1.7), FORMS, step=10)  # too few to correlate
    assert few == "After 10 steps alphas lie between 1.30 and 1.70; the loss alone decided about sparsity."


def test_the_sentence_lists_attention_types_that_moved_apart() -> None:
    start = places(1.2, 1.5, 1.8) | places(1.2, 1.5, 1.8, kind="cross")
    apart = alpha_sentence(start, places(1.2, 1.3, 1.4) | places(1.9, 1.8, 1.6, kind="cross"), FORMS, step=9) or ""
    assert "with their random initialization (by attention type: encoder 1.00, cross -0.98): attention types differ;" in apart
    alike = alpha_sentence(start, places(1.2, 1.3, 1.4) | places(1.2, 1.3, 1.5, kind="cross"), FORMS, step=9) or ""
    assert re.search(r"type: encoder 1.00, cross 0.98\): they tell where heads started", alike)


def test_gradients_of_the_last_quarter_are_pooled() -> None:
    lines = [
        {"kind": "alpha_gradients", "step": step, "steps": 10, "encoder": [[mean]], "encoder_std": [[0.0]]}
        for step, mean in ((10, 9.0), (60, 9.0), (80, -1.0), (100, 3.0))
    ]
    found = recent_gradients(lines, 100)
    assert found == {"steps": 20, "encoder": [[[pytest.approx(1.0), pytest.approx(2.0)]]]}
    assert recent_gradients(lines, 5) is None
    assert recent_gradients([], -1) is None


def test_a_run_folder_tells_how_its_alphas_were_learned(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    recipe = {"training": {"density_target": {"encoder": 0.4, "cross": 0.5}}}
    folder.recipe.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    lines = [{"kind": "alphas", "step": step, "encoder": [[1.5, 1.2, 1.9 - step / 10]]} for step in (0, 5)]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    config = Seq2SeqConfig.from_dict({"vocab_size": 9, "encoder": {"alpha_parametrization": "projected"}})
    found = learned_alphas_of(folder, config, places(1.5, 1.2, 1.0), 5)
    assert found["alpha_steps"] == [0, 5]
    assert found["alpha_marks"] == {"encoder.0.2": "at 1"}
    assert found["alpha_sentence"].endswith("weight) of 0.4 in encoder and 0.5 in cross.")
    measured = places(0.25, 0.5, 0.75) | places(0.5, kind="decoder")
    reached = learned_alphas_of(folder, config, places(1.5, 1.2, 1.0), 5, densities=measured, data_name="valid")
    assert reached["alpha_sentence"].endswith("0.5 in cross; it is 0.50 in encoder on the validation text.")
    figure = alpha_heads({"runs": [{"name": "a", **found}, {"name": "b", "alpha_paths": None}]})
    assert figure is not None
    (axes,) = figure.axes
    assert len(axes.patches) == 3
    assert [patch.get_linewidth() for patch in axes.patches] == [0.7, 0.7, 1.6]
    assert alpha_heads({"runs": [{"name": "b", "alpha_paths": None}]}) is None
