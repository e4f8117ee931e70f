"""Language models beyond their training length: perplexity by length and position, retrieval of a fact, last words.

perplexity   of the same tokens, the last `train` ones of each window, given 1 to 16 times the training length of text
position     perplexity at every position of the longest window
needle       a sentence "The secret word of NAME is WORD." at some depth of the text, asked for at its end: whether the answer
             has a higher probability than those of the other needles
last words   accuracy on tokens whose last occurrence in the longest window is farther back than the training length: the same
             tokens at every length, so only a longer context can help
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from entformer.checkpoint.language_model import LoadedLM
from entformer.data.text import TextBatch
from entformer.errors import DataError
from entformer.models.lm import CausalLM
from entformer.models.state import LMState
from entformer.tasks.language_modeling import token_losses
from entformer.text.tokenizer import BOS

FACTORS = (1, 2, 4, 8, 16)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
NEEDLES = (
    *(("Anna", "river"), ("Karl", "candle"), ("Edith", "garden")),
    *(("Oliver", "silver"), ("Martha", "window"), ("Henry", "stone")),
)
BUCKETS = 16  # of positions

Progress = Callable[[str, int, int], None]


@dataclass
class LengthReport:
    """Results of one model."""

    name: str
    train_length: int
    perplexity: dict[int, float] = field(default_factory=dict)
    """Length -> perplexity of the same tokens."""
    by_position: list[tuple[int, float]] = field(default_factory=list)
    """(last position, perplexity) of intervals of positions of the longest window."""
    needle: dict[int, dict[float, float]] = field(default_factory=dict)
    """Length -> depth -> share of facts retrieved; chance is 1 / number of facts."""
    last_words: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Length -> accuracy, and the number of words."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def evaluate_lengths(
    loaded: LoadedLM,
    ids: NDArray[Any],
    *,
    name: str,
    factors: tuple[int, ...] = FACTORS,
    count: int = 8,
    progress: Progress = lambda what, done, total: None,
) -> LengthReport:
    """Evaluates a model on text.

    Args:
        loaded: The model.
        ids: A text, as `PreparedText.ids` gives it; documents of at least the longest window are needed.
        name: Of the model.
        factors: Multiples of the training length.
        count: Windows of text at most.
        progress: Called with what is done, the number done and the number of all.

    Raises:
        DataError: No document is long enough.
    """
    train, longest = loaded.context, max(factors) * loaded.context
    ends = _ends(ids, longest, count)
    report = LengthReport(name, train)
    lengths = [factor * train for factor in factors]
    far = [_far_words(ids, end, longest, train) for end in ends]
    everywhere: torch.Tensor | None = None
    for done, length in enumerate(lengths):
        progress(f"{name}: perplexity", done, len(lengths))
        found = [_read(loaded, ids, end, length) for end in ends]
        losses = torch.stack([losses for losses, _ in found])  # (windows, length)
        report.perplexity[length] = math.exp(min(float(losses[:, -train:].double().mean()), 700.0))
        right = [float(hits[at]) for (_, hits), own in zip(found, far, strict=True) for at in own]
        report.last_words[length] = (sum(right) / max(len(right), 1), len(right))
        everywhere = losses if length == longest else everywhere
    if everywhere is not None:
        for part in torch.arange(longest).tensor_split(BUCKETS):
            mean = float(everywhere[:, part].double().mean())
            report.by_position.append((int(part[-1]) + 1, math.exp(min(mean, 700.0))))
    for done, length in enumerate(lengths):
        progress(f"{name}: needle", done, len(lengths))
        report.needle[length] = {depth: _needle(loaded, ids, ends[0], length, depth) for depth in DEPTHS}
    return report


def _ends(ids: NDArray[Any], longest: int, count: int) -> list[int]:
    """Returns where windows of `longest` tokens end that lie within one document, spread over the text."""
    borders = np.append(np.flatnonzero(ids == BOS), len(ids))
    if not len(borders) or borders[0] != 0:
        borders = np.insert(borders, 0, 0)
    found: list[int] = []
    for start, end in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        found += range(start + longest + 1, end, longest)
    if not found:
        raise DataError(
            f"no document of the text has more than {longest} tokens, the longest context; choose a smaller --longest, or "
            "another text."
        )
    chosen = np.linspace(0, len(found) - 1, min(count, len(found))).round().astype(int)
    return [found[i] for i in chosen.tolist()]


def _read(loaded: LoadedLM, ids: NDArray[Any], end: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss of every label of the window of `length` tokens that ends before `end`, and whether it was right."""
    device = next(loaded.model.parameters()).device
    batch = TextBatch.cut(ids, [end - length], length).to(device)
    losses, hits = token_losses(loaded.model, batch)
    return losses[0].cpu(), hits[0].cpu()


def _far_words(ids: NDArray[Any], end: int, longest: int, train: int) -> list[int]:
    """Returns which of the last `train` labels before `end`, counted from the end, occur earlier, but not within `train`."""
    labels = ids[end - longest + 1 : end + 1].tolist()
    last: dict[int, int] = {}
    found = []
    for at, token in enumerate(labels):
        if at >= longest - train and token in last and at - last[token] > train:
            found.append(at - longest)
        last[token] = at
    return found


def _needle(loaded: LoadedLM, ids: NDArray[Any], end: int, length: int, depth: float) -> float:
    """Returns the share of facts whose answer is the most probable of all answers, with the fact at `depth` of the text."""
    device = next(loaded.model.parameters()).device
    encode = loaded.tokenizer.encode
    answers = [encode(f" {word}") for _, word in NEEDLES]
    right = 0
    for number, (name, word) in enumerate(NEEDLES):
        fact = encode(f" The secret word of {name} is {word}.")
        question = encode(f" The secret word of {name} is")
        rest = length - len(fact) - len(question) - max(map(len, answers)) - 1
        if rest < 0:
            return math.nan
        around = ids[end - rest : end].tolist()
        at = round(depth * rest)
        prompt = torch.tensor([[BOS, *around[:at], *fact, *around[at:], *question]], device=device)
        state = loaded.model.start()
        first = loaded.model.step(prompt, state)  # (1, V): the prompt is read once for all answers
        scores = [_answer_loss(loaded.model, first, state, torch.tensor([answer], device=device)) for answer in answers]
        right += int(np.argmin(scores)) == number
    return right / len(NEEDLES)


def _answer_loss(model: CausalLM, first: torch.Tensor, state: LMState, answer: torch.Tensor) -> float:
    """Returns the mean of -ln p of an answer (1, n) after the tokens of `state`, whose last gave scores `first` (1, V)."""
    mark = state.mark()
    rest = model.logits(model.hidden(answer[:, :-1], state=state)[0]) if answer.shape[1] > 1 else first[:0]
    state.restore(mark)
    return float(torch.nn.functional.cross_entropy(torch.cat([first, rest]).float(), answer[0]))


def markdown(reports: list[LengthReport]) -> str:
    """Returns the tables of all models in Markdown."""
    lengths = sorted({length for report in reports for length in report.perplexity})
    head = ["| model | " + " | ".join(map(str, lengths)) + " |", "|---|" + "---|" * len(lengths)]
    text = ["Perplexity of the same tokens, given this many tokens of text", "", *head]
    text += [
        f"| {one.name} | " + " | ".join(f"{one.perplexity.get(n, math.nan):.2f}" for n in lengths) + " |" for one in reports
    ]
    text += ["", f"Retrieval of a fact in percent, mean over depths; chance is {100 / len(NEEDLES):.0f}", "", *head]
    for one in reports:
        means = {n: np.mean(list(found.values())) for n, found in one.needle.items()}
        text.append(f"| {one.name} | " + " | ".join(f"{100 * means.get(n, math.nan):.0f}" for n in lengths) + " |")
    text += ["", "Accuracy on last words in percent (number of words)", "", *head]
    for one in reports:
        cells = [one.last_words.get(n, (math.nan, 0)) for n in lengths]
        text.append(f"| {one.name} | " + " | ".join(f"{100 * value:.1f} ({total})" for value, total in cells) + " |")
    return "\n".join([*text, ""])
