"""The tasks: each label is right by an independent rule, lengths are as asked, seeds repeat, docstrings tell the truth."""

import pytest
import torch

from entformer.errors import ArgumentError
from entformer.longcontext.registry import ABOUT, SIZES, get_task_config
from entformer.longcontext.tasks import IGNORE, TASKS, Sample, make_task


def draw(name: str, batch: int = 5, n: int = 24, seed: int = 0, **options: float) -> Sample:
    return make_task(name, **options).sample(batch, n, torch.Generator().manual_seed(seed))


def answer(sample: Sample, row: int) -> list[int]:
    return [label for label in sample.labels[row].tolist() if label != IGNORE]


def test_every_task_is_in_the_registry_and_explained() -> None:
    assert set(TASKS) == set(ABOUT)
    for name, made in TASKS.items():
        assert (made.__doc__ or "").strip(), name
        for size in SIZES:
            recipe = get_task_config(name, size)
            held_out = make_task(name, **recipe.options).held_out()
            for length in (recipe.train_length, *recipe.lengths):
                held_out.sample(1, length, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", TASKS)
def test_seeds_repeat_and_ids_fit_the_vocabulary(name: str) -> None:
    first, again, other = draw(name), draw(name), draw(name, seed=1)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.inputs, other.inputs)
    task = make_task(name)
    labels = first.labels[first.labels != IGNORE]
    assert 0 <= labels.min() <= labels.max() < task.vocab_size
    if first.inputs.dtype == torch.int64:
        assert 0 <= first.inputs.min() <= first.inputs.max() < task.vocab_size
        assert first.inputs.shape == first.labels.shape


@pytest.mark.parametrize(("name", "rule"), [("copy", list), ("reverse", lambda s: s[::-1]), ("sort", sorted)])
def test_copy_reverse_and_sort(name: str, rule: type[list[int]]) -> None:
    sample, a = draw(name, alphabet=9), 9
    bos, eos, sep = a + 1, a + 2, a + 4
    for row in range(5):
        inputs = sample.inputs[row].tolist()
        source = inputs[1:25]
        assert inputs == [bos, *source, sep, *rule(source)]
        assert answer(sample, row) == [*rule(source), eos]
        assert sample.labels[row, :25].tolist() == [IGNORE] * 25  # asked from SEP on


def test_n_back() -> None:
    sample = draw("n-back", n=10, steps=3)
    for row in range(5):
        text = sample.inputs[row, 1:-1].tolist()
        assert text[0] == 0
        assert 0 not in text[1:]
        assert sample.labels[row, 1:-1].tolist() == ([0] * 3 + text)[: len(text)]
        assert sample.labels[row, 0] == sample.labels[row, -1] == IGNORE


def test_local_count() -> None:
    sample = draw("local-count", n=200, max_repeats=7, alphabet=4)
    for row in range(5):
        text, run, longest = sample.inputs[row, 1:-1].tolist(), 0, 0
        assert len(text) == 200
        for at, token in enumerate(text):
            run = run + 1 if at and text[at - 1] == token else 0
            longest = max(longest, run)
            assert sample.labels[row, 1 + at] == run
        assert longest <= 6


def test_flip_flop() -> None:
    sample = draw("flip-flop", batch=50, n=40, write=0.2)
    for row in range(50):
        text = sample.inputs[row].tolist()
        assert len(text) == 1 + 39 + 1  # BOS, the source without its last bit, that bit
        commands, bits = text[1:40:2], text[2:40:2]
        assert commands[0] == 2
        assert commands[-1] == 4
        assert set(commands[1:-1]) <= {2, 3}
        memory = [bit for command, bit in zip(commands, bits, strict=False) if command == 2][-1]
        assert answer(sample, row) == [memory, 5 + 2]
        assert text[-1] == memory
        assert sample.labels[row, 39] == memory  # asked under the read command


def test_parity() -> None:
    sample = draw("parity", n=11)
    for row in range(5):
        assert answer(sample, row) == [int(sum(sample.inputs[row, 1:12].tolist()) % 2 == 0), 2 + 2]


@pytest.mark.parametrize("options", [{}, {"letters": 40, "words": 300, "queries": 2}, {"key_letters": 1, "value_letters": 3}])
def test_mqmtar(options: dict[str, float]) -> None:
    task = make_task("mqmtar", **options | ({"words": 200} if options.get("key_letters") else {}))
    for n in (48, 100, 640):
        sample = task.sample(4, n, torch.Generator().manual_seed(1))
        pairs, key, value, queries = task.pairs(n), task.key_letters, task.value_letters, task.queries  # type: ignore[attr-defined]
        assert pairs == int(0.8 * n / (key + value + 2))
        width = n // pairs
        for row in range(4):
            text = sample.inputs[row, 1:].tolist()
            memory = {}
            for start in range(0, pairs * width, width):
                filled = text[start : start + width]
                at = next(place for place, token in enumerate(filled) if token)
                assert filled[at + key] == 1
                memory[tuple(filled[at : at + key])] = filled[at + key + 1 : at + key + 1 + value]
                assert not any(filled[at + key + 1 + value :])
            assert len(memory) == pairs
            asked = text[pairs * width : pairs * width + queries * (key + 1)]
            expected = []
            for start in range(0, len(asked), key + 1):
                assert asked[start] == 2
                expected += [2, *memory[tuple(asked[start + 1 : start + 1 + key])]]
            assert answer(sample, row) == [*expected, task.data_tokens + 2]


def test_mqmtar_splits_share_no_words() -> None:
    task = make_task("mqmtar", letters=64, words=400)
    parts = (task, task.held_out(), task.validation())
    samples = [part.sample(300, 12, torch.Generator().manual_seed(0)) for part in parts]
    asked = [{tuple(row[13 + 1 : 13 + 3]) for row in sample.inputs.tolist()} for sample in samples]
    assert not asked[0] & asked[1] | asked[0] & asked[2] | asked[1] & asked[2]


def test_max_retrieval() -> None:
    sample = draw("max-retrieval", n=30)
    assert sample.inputs.shape == (5, 31, 11)
    for row in range(5):
        best = int(sample.inputs[row, 1:, 0].argmax())
        assert sample.inputs[row, 1 + best, 1 + int(sample.labels[row, 0])] == 1.0
    assert (sample.inputs[:, 1:, 1:].sum(-1) == 1.0).all()


def test_invalid_arguments_raise() -> None:
    for call, words in (
        (lambda: make_task("juggle"), "unknown task 'juggle'"),
        (lambda: make_task("copy", letters=3), "no option 'letters'"),
        (lambda: make_task("copy", alphabet=2.5), "positive int"),
        (lambda: make_task("mqmtar", split=1), "no option 'split'"),
        (lambda: draw("mqmtar", n=5), "0 pairs"),
        (lambda: draw("flip-flop", n=3), "at least 4"),
        (lambda: get_task_config("copy", "huge"), "'huge'"),
    ):
        with pytest.raises(ArgumentError, match=words):
            call()
