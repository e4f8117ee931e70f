"""Synthetic tasks of any length: inputs (B, L) and labels (B, L) for a causal model, IGNORE where there is no label.

Data tokens are 0 .. a-1; pad, bos, eos, mask and sep follow. A batch has one length, without padding; `mixed` combines several.

    label after the source (sort, copy, reverse, MQMTAR):  BOS source SEP target   ->  target EOS, from SEP on
    label per token (n-back, local count):                 BOS source EOS          ->  one label under each source token
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from entformer.errors import ArgumentError
from entformer.longcontext.registry import task_name

__all__ = ["IGNORE", "TASKS", "Sample", "Task", "make_task", "mixed"]

IGNORE = -100
PAD, BOS, EOS, MASK, SEP = range(5)  # above the data tokens


class Sample(NamedTuple):
    """A batch of one length."""

    inputs: Tensor  # (B, L) ids; max retrieval: (B, 1 + n, 1 + classes) numbers
    labels: Tensor  # (B, L) ids or IGNORE; max retrieval: (B, 1)


@dataclass(frozen=True)
class Task:
    """A task; its fields are the options of `--option`."""

    @property
    def data_tokens(self) -> int:
        """Number of data ids; special ids follow."""
        raise NotImplementedError

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return self.data_tokens + 5

    def sample(self, batch: int, n: int, generator: torch.Generator) -> Sample:
        """Returns `batch` sequences of size n."""
        raise NotImplementedError

    def held_out(self) -> Self:
        """Returns the task for evaluation, with other words if the task has words."""
        return self

    def validation(self) -> Self:
        """Returns the task for validation, with other words if the task has words."""
        return self

    def _special(self, batch: int, which: int) -> Tensor:
        return torch.full((batch, 1), self.data_tokens + which)

    def _after(self, source: Tensor, target: Tensor, *, separated: bool = True) -> Sample:
        """Returns BOS source (SEP) target EOS with labels from the end of the source on."""
        batch = source.shape[0]
        middle = [self._special(batch, SEP)] if separated else []
        whole = torch.cat([self._special(batch, BOS), source, *middle, target, self._special(batch, EOS)], 1)
        labels = whole[:, 1:].clone()
        labels[:, : source.shape[1] + len(middle)] = IGNORE  # labels from SEP on, or from the last token of the source
        return Sample(whole[:, :-1], labels)

    def _beneath(self, source: Tensor, labels: Tensor) -> Sample:
        """Returns BOS source EOS with a label under each source token."""
        batch = source.shape[0]
        nothing = torch.full((batch, 1), IGNORE)
        inputs = torch.cat([self._special(batch, BOS), source, self._special(batch, EOS)], 1)
        return Sample(inputs, torch.cat([nothing, labels, nothing], 1))


def mixed(task: Task, lengths: Tensor, generator: torch.Generator) -> Sample:
    """Returns sequences of these lengths (B,), padded on the right, which a causal model does not attend to."""
    found: list[tuple[Tensor, Sample]] = []
    for n in lengths.unique().tolist():
        at = (lengths == n).nonzero()[:, 0]
        found.append((at, task.sample(len(at), int(n), generator)))
    longest = max(sample.inputs.shape[1] for _, sample in found)
    inputs = torch.full((len(lengths), longest), task.data_tokens + PAD)
    labels = torch.full((len(lengths), longest), IGNORE)
    for at, sample in found:
        inputs[at, : sample.inputs.shape[1]] = sample.inputs
        labels[at, : sample.labels.shape[1]] = sample.labels
    return Sample(inputs, labels)


@dataclass(frozen=True)
class _Tokens(Task):
    alphabet: int = 32

    @property
    def data_tokens(self) -> int:
        return self.alphabet

    def sample(self, batch: int, n: int, generator: torch.Generator) -> Sample:
        source = torch.randint(self.alphabet, (batch, n), generator=generator)
        return self._after(source, self._target(source))

    def _target(self, source: Tensor) -> Tensor:
        raise NotImplementedError


class Copy(_Tokens):
    """BOS 7 3 3 1 SEP -> 7 3 3 1 EOS."""

    def _target(self, source: Tensor) -> Tensor:
        return source


class Reverse(_Tokens):
    """BOS 7 3 3 1 SEP -> 1 3 3 7 EOS."""

    def _target(self, source: Tensor) -> Tensor:
        return source.flip(1)


class Sort(_Tokens):
    """BOS 7 3 3 1 SEP -> 1 3 3 7 EOS; ascending."""

    def _target(self, source: Tensor) -> Tensor:
        return source.sort(1).values


@dataclass(frozen=True)
class NBack(_Tokens):
    """With steps = 2, under BOS 0 7 3 3 1 EOS:  - 0 0 0 7 3 -, for each token the one two positions before, or 0."""

    alphabet: int = 16  # 0 is the blank
    steps: int = 2

    def sample(self, batch: int, n: int, generator: torch.Generator) -> Sample:
        tokens = torch.randint(1, self.alphabet, (batch, n), generator=generator)
        source = torch.nn.functional.pad(tokens, (1, 0))
        labels = torch.nn.functional.pad(source, (self.steps, 0))[:, : source.shape[1]]
        return self._beneath(source, labels)


@dataclass(frozen=True)
class LocalCount(_Tokens):
    """Under BOS 5 5 5 2 2 5 5 EOS:  - 0 1 2 0 1 0 1 -, how often this token stood just before.

    Blocks of 2 to `max_repeats` equal tokens; adjacent blocks differ. Published sequences end with a whole block and so differ
    in length; here the last block is cut, so that a batch has one length.
    """

    alphabet: int = 16
    max_repeats: int = 48

    @property
    def data_tokens(self) -> int:
        return max(self.alphabet, self.max_repeats)  # labels are counts

    def sample(self, batch: int, n: int, generator: torch.Generator) -> Sample:
        blocks = n // 2 + 1  # upper bound
        sizes = torch.randint(2, self.max_repeats + 1, (batch, blocks), generator=generator)
        ends = sizes.cumsum(1)  # (B, blocks)
        position = torch.arange(n).expand(batch, n).contiguous()
        block = torch.searchsorted(ends, position, right=True)  # (B, n): block of each position
        step = torch.randint(1, self.alphabet, (batch, blocks), generator=generator)  # never 0: adjacent blocks differ
        tokens = step.cumsum(1) % self.alphabet
        labels = position - (ends - sizes).gather(1, block)
        return self._beneath(tokens.gather(1, block), labels)


@dataclass(frozen=True)
class FlipFlop(Task):
    """w 1 i 0 i 0 w 0 i 1 r -> 0 EOS: the bit last written. Ids: bits 0 and 1, then write, ignore, read = 2, 3, 4.

    n // 2 instructions: the first writes, the last reads, the others write with probability `write`, else are ignored. A small
    `write` puts the bit far back.
    """

    write: float = 0.1

    @property
    def data_tokens(self) -> int:
        return 5

    def sample(self, batch: int, n: int, generator: torch.Generator) -> Sample:
        count = n // 2
        if count < 2:
            raise ArgumentError(f"flip-flop needs a length of at least 4, not {n}.")
        writes = torch.rand((batch, count), generator=generator) < self.write
        writes[:, 0], writes[:, -1] = True, False
        command = torch.where(writes, 2, 3)
        command[:, -1] = 4
        bits = torch.randint(2, (batch, count), generator=generator)
        last = torch.where(writes, torch.arange(count), 0).amax(1, keepdim=True)  # (B, 1): index of the last write
        source = torch.stack([command, bits], 2).flatten(1)[:, :-1]  # the last bit is the answer
        return self._after(source, bits.gather(1, last), separated=False)


@dataclass(frozen=True)
class Parity(Task):
    """BOS 1 0 1 1 SEP -> 0 EOS; 1 if the number of ones is even, as in the published generator."""

    @property
    def data_tokens(self) -> int:
        return 2

    def sample(self, batch: int, n: int, generator: torch.Generator) -> Sample:
        bits = torch.randint(2, (batch, n), generator=generator)
        return self._after(bits, 1 - bits.sum(1, keepdim=True) % 2)


@dataclass(frozen=True)
class MQMTAR(Task):
    """Multi-query multi-token associative recall. With letters a..z for ids, _ = 0 (space), : = 1, ? = 2:

        BOS _ a b : x y _ _ c d : u v _ ?cd ?ab ?cd SEP  ->  ?uv ?xy ?uv EOS

    Each of m = floor(density n / (key + value + 2)) pairs is at a random offset of its own field of floor(n / m) tokens. Keys
    and values are words of a fixed vocabulary; evaluation uses other words than training if there are enough.
    """

    letters: int = 256
    key_letters: int = 2
    value_letters: int = 2
    queries: int = 4
    density: float = 0.8
    words: int = 10_000
    split: str = "train"

    @property
    def data_tokens(self) -> int:
        return self.letters + 3

    def held_out(self) -> Self:
        return replace(self, split="evaluation")

    def validation(self) -> Self:
        return replace(self, split="validation")

    def pairs(self, n: int) -> int:
        """Returns the number of pairs in a source of n tokens."""
        return math.floor(self.density * n / (self.key_letters + self.value_letters + 2) + 1e-9)

    def sample(self, batch: int, n: int, generator: torch.Generator) -> Sample:
        pairs, block = self.pairs(n), self.key_letters + self.value_letters + 2
        sizes = {"keys": self.key_letters, "values": self.value_letters}
        keys, values = (_words(self.letters, size, self.words, self.split, salt) for salt, size in sizes.items())
        if pairs < 1 or pairs > min(len(keys), len(values)):
            raise ArgumentError(f"MQMTAR of length {n} has {pairs} pairs; it needs 1 to {min(len(keys), len(values))}.")
        key = keys[_distinct(batch, pairs, len(keys), generator)]  # (B, m, key letters)
        value = values[_distinct(batch, pairs, len(values), generator)]
        width = n // pairs
        colon, space = torch.ones(batch, pairs, 1, dtype=torch.int64), torch.zeros(batch, pairs, 1, dtype=torch.int64)
        row = torch.cat([key, colon, value, space], 2)  # (B, m, block)
        start = torch.randint(width - block + 1, (batch, pairs, 1), generator=generator)
        field = torch.zeros(batch, pairs, width, dtype=torch.int64).scatter_(2, start + torch.arange(block), row)
        asked = torch.randint(pairs, (batch, self.queries), generator=generator)
        return self._after(
            torch.cat([field.flatten(1), self._marked(key, asked)], 1),
            self._marked(value, asked),
        )

    def _marked(self, words: Tensor, which: Tensor) -> Tensor:
        """Returns the queried (B, q) words of (B, m, letters), each after a question mark: (B, q * (1 + letters))."""
        chosen = words.gather(1, which[..., None].expand(-1, -1, words.shape[2]))
        return torch.nn.functional.pad(chosen, (1, 0), value=2).flatten(1)


@lru_cache(maxsize=16)
def _words(letters: int, size: int, count: int, split: str, salt: str) -> Tensor:
    """Returns `count` distinct words of `size` letters as ids from 3 on; splits are disjoint if there are enough words."""
    total = letters**size
    seed = sum(ord(letter) * 31**power for power, letter in enumerate(f"{salt}{letters}.{size}"))
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed % 2**31))
    part = ("train", "evaluation", "validation").index(split)
    chosen = order[:count] if total < (part + 1) * count else order[part * count : (part + 1) * count]
    return torch.stack([chosen // letters**power % letters for power in range(size)], 1) + 3  # (count, size)


def _distinct(batch: int, count: int, total: int, generator: torch.Generator) -> Tensor:
    """Returns (batch, count) distinct numbers below total per row; rows with repetitions are drawn again."""
    if count * count >= total:
        return torch.rand((batch, total), generator=generator).argsort(1)[:, :count]
    drawn = torch.randint(total, (batch, count), generator=generator)
    while True:
        ascending = drawn.sort(1).values
        repeated = (ascending[:, 1:] == ascending[:, :-1]).any(1).nonzero()[:, 0]
        if len(repeated) == 0:
            return drawn
        drawn[repeated] = torch.randint(total, (len(repeated), count), generator=generator)


@dataclass(frozen=True)
class MaxRetrieval(Task):
    """Items (0.2, red), (0.9, blue), (0.5, red) -> blue: the class of the highest priority (Velickovic et al. 2024).

    inputs[:, 0, 0] is a random number, the query; inputs[:, 1 + i] is item i: its priority, U(0, 1), and its class, one-hot.
    """

    classes: int = 10

    @property
    def data_tokens(self) -> int:
        return self.classes

    @property
    def vocab_size(self) -> int:
        return self.classes

    def sample(self, batch: int, n: int, generator: torch.Generator) -> Sample:
        priority = torch.rand((batch, n), generator=generator)
        label = torch.randint(self.classes, (batch, n), generator=generator)
        inputs = torch.zeros(batch, 1 + n, 1 + self.classes)
        inputs[:, 0, 0] = torch.rand((batch,), generator=generator)
        inputs[:, 1:, 0] = priority
        inputs[:, 1:, 1:].scatter_(2, label[..., None], 1.0)
        return Sample(inputs, label.gather(1, priority.argmax(1, keepdim=True)))


TASKS: dict[str, Callable[..., Task]] = {
    "mqmtar": MQMTAR,
    "sort": Sort,
    "copy": Copy,
    "reverse": Reverse,
    "local-count": LocalCount,
    "n-back": NBack,
    "flip-flop": FlipFlop,
    "parity": Parity,
    "max-retrieval": MaxRetrieval,
}


def make_task(name: str, **options: Any) -> Task:
    """Returns the task of this name with these options."""
    made = TASKS[task_name(name)]()
    known = {field.name: type(getattr(made, field.name)) for field in fields(made)}
    for option, value in options.items():
        if option not in known or option == "split":
            choice = ", ".join(known.keys() - {"split"}) or "none"
            raise ArgumentError(f"the task {name!r} has no option {option!r}; it has: {choice}.")
        if not isinstance(value, int | float) or value <= 0 or (known[option] is int and not isinstance(value, int)):
            raise ArgumentError(f"option {option}={value!r} of {name!r} must be a positive {known[option].__name__}.")
    return replace(made, **options)
