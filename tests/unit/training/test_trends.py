"""Sparklines of alphas and densities."""

from entformer.training.trends import describe_trends, sparkline


def test_blocks_span_the_range_and_values_outside_are_clamped() -> None:
    assert sparkline([1.0, 1.5, 2.0], 1.0, 2.0) == "▁▅█"
    assert sparkline([0.0, 9.0], 1.0, 2.0) == "▁█"
    assert sparkline([], 0.0, 1.0) == ""


def test_a_long_course_is_thinned_from_its_first_to_its_last_value() -> None:
    assert sparkline([i / 99 for i in range(100)], 0.0, 1.0, width=8) == "▁▂▃▄▅▆▇█"


def test_alphas_are_means_per_attention_type_and_the_density_is_that_of_all_heads() -> None:
    entries = [
        {"kind": "alphas", "step": 0, "encoder": [[1.0, 1.2]], "cross": [[2.0, 2.0]]},
        {"kind": "densities", "step": 0, "encoder": [[1.0, 1.0]], "cross": [[0.5, 0.5]]},
        {"kind": "train", "step": 1, "loss": 3.0},
        {"kind": "alphas", "step": 1, "encoder": [[1.4, 1.6]], "cross": [[1.9, 1.9]]},
        {"kind": "densities", "step": 1, "encoder": [[0.5, 0.5]], "cross": [[0.3, 0.3]]},
    ]
    assert describe_trends(entries) == "α enc ▁▅ 1.50  cross ██ 1.90\ndensity ▇▄ 40%".replace("█", "█")


def test_a_model_without_learned_alphas_has_no_trends() -> None:
    assert describe_trends([{"kind": "train", "step": 1, "loss": 3.0}]) == ""
