"""What `entformer bench attention` measures. In: shapes, numbers of threads. Out: a `Plan`: settings, each with its rounds.

The base grid is every shape at every logit scale, on the most threads asked for. Around it, at logit scale 1: causal,
padded keys, cross attention, one query against a long cache, and the smaller numbers of threads. Not the full product:
it would take an hour and say the same.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from entformer.errors import ArgumentError


class Shape(NamedTuple):
    """Self-attention over (batch, heads, length, head size)."""

    batch: int
    heads: int
    length: int
    size: int


SHAPES = (Shape(16, 8, 64, 64), Shape(4, 8, 512, 64), Shape(1, 8, 2048, 64), Shape(1, 8, 8192, 64))
SCALES = (1.0, 2.0)
LONG_LENGTHS = (16_384, 65_536)
KINDS = ("plain", "causal", "padded", "cross", "decode", "prefill")
LONGEST_DENSE = 2048
"""The entmax package stores the scores and their weights several times over; beyond this length they would fill the memory."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One race: tensors, masks, threads, and how often each contestant runs."""

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    kind: str = "plain"
    """One of KINDS. "padded": the last quarter of the keys of every second sequence (of the only one) is masked.
    "prefill": causal, forward alone."""
    scale: float = 1.0
    """The queries are normal deviates times this; scores then have this standard deviation."""
    threads: int
    rounds: int
    slow_rounds: int
    """Rounds of the contestants with many non-zero weights. 0 leaves them out."""
    peer_rounds: int = 0
    """Rounds of the dense composition with the entmax package. 0 leaves it out."""

    @property
    def shape(self) -> str:
        """(batch, heads, length, head size) in a few letters; queries/keys where they differ."""
        length = str(self.keys) if self.queries == self.keys else f"{self.queries}/{self.keys}"
        return f"{self.batch},{self.heads},{length},{self.size}"

    @property
    def scores(self) -> int:
        """How many numbers q k^T has."""
        return self.batch * self.heads * self.queries * self.keys

    def case(self, usual_threads: int) -> str:
        """What sets it apart from plain attention on the usual threads at logit scale 1; empty if nothing does."""
        parts = [self.kind] if self.kind != "plain" else []
        parts += [f"logits x{self.scale:g}"] if self.scale != 1.0 else []
        parts += [f"{self.threads} thread{'s' if self.threads > 1 else ''}"] if self.threads != usual_threads else []
        return ", ".join(parts)

    @property
    def backward(self) -> bool:
        """Decoding and prefill have no backward pass."""
        return self.kind not in ("decode", "prefill")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything one run measures."""

    settings: tuple[Setting, ...]
    memory_lengths: tuple[int, ...] = ()
    """Peak memory of forward+backward at (1, 8, L, 64), one process each."""
    scaling_lengths: tuple[int, ...] = ()
    """Time of forward+backward at (1, 8, L, 64), each length against the one before."""
    long_lengths: tuple[int, int] | None = None
    """Keys of a causal prefill and of one decoded token, (1, 8, L, 64); None leaves them out. See long.py."""
    threads: int
    """Of the base grid, the memory, the scaling and the long ones."""


def full_plan(
    shapes: tuple[Shape, ...] = SHAPES,
    threads: tuple[int, ...] = (2, 1),
    *,
    memory: bool = True,
    scaling: bool = True,
    long: bool = False,
) -> Plan:
    """About five minutes on two cores for the shapes of `SHAPES`."""
    most, *fewer = _distinct(threads)
    settings = [_self_attention(shape, "plain", scale, most) for scale in SCALES for shape in shapes]
    settings += [_self_attention(shape, "causal", 1.0, most) for shape in shapes]
    settings += [_self_attention(shape, "padded", 1.0, most) for shape in shapes if 512 <= shape.length <= LONGEST_DENSE]
    settings += [
        _setting(4, 8, 128, 2048, 64, kind="cross", scale=1.0, threads=most),
        _setting(1, 8, 1, 8192, 64, kind="decode", scale=1.0, threads=most),
    ]
    settings += [
        _self_attention(shape, "plain", 1.0, count) for count in fewer for shape in shapes if shape.length <= LONGEST_DENSE
    ]
    return Plan(
        settings=tuple(settings),
        memory_lengths=(2048, 8192) if memory else (),
        scaling_lengths=(2048, 4096, 8192, 16384) if scaling else (),
        long_lengths=LONG_LENGTHS if long else None,
        threads=most,
    )


def quick_plan(
    shapes: tuple[Shape, ...] | None = None,
    threads: tuple[int, ...] = (2,),
    *,
    memory: bool = False,
    scaling: bool = False,
    long: bool = False,
    rounds: int = 3,
) -> Plan:
    """Some seconds: small shapes, few rounds. Enough to see that everything runs; the figures are rough."""
    most, *fewer = _distinct(threads)
    repeats: dict[str, Any] = {"rounds": rounds, "slow_rounds": rounds}
    chosen = shapes or (Shape(4, 8, 64, 64), Shape(1, 8, 512, 64))
    settings = [Setting(**_sizes(shape), threads=most, peer_rounds=1, **repeats) for shape in chosen if shape.length <= 2048]
    settings += [Setting(**_sizes(shape), threads=most, rounds=1, slow_rounds=1) for shape in chosen if shape.length > 2048]
    settings += [Setting(**_sizes(shape), threads=count, **repeats) for count in fewer for shape in chosen]
    small = Shape(2, 8, 64, 64)
    settings += [Setting(**_sizes(small), kind=kind, threads=most, **repeats) for kind in ("causal", "padded")]
    settings += [
        Setting(batch=1, heads=8, queries=16, keys=256, size=64, kind="cross", threads=most, **repeats),
        Setting(batch=1, heads=8, queries=1, keys=1024, size=64, kind="decode", threads=most, **repeats),
    ]
    return Plan(
        settings=tuple(settings),
        memory_lengths=(1024,) if memory else (),
        scaling_lengths=(512, 1024) if scaling else (),
        long_lengths=LONG_LENGTHS if long else None,
        threads=most,
    )


def _distinct(threads: tuple[int, ...]) -> list[int]:
    if not threads or min(threads) < 1:
        raise ArgumentError(f"threads={','.join(map(str, threads))} makes no sense; give numbers of 1 or more, like 1,2.")
    return sorted(set(threads), reverse=True)


def _sizes(shape: Shape) -> dict[str, Any]:
    return {"batch": shape.batch, "heads": shape.heads, "queries": shape.length, "keys": shape.length, "size": shape.size}


def _self_attention(shape: Shape, kind: str, scale: float, threads: int) -> Setting:
    return _setting(shape.batch, shape.heads, shape.length, shape.length, shape.size, kind=kind, scale=scale, threads=threads)


def _setting(batch: int, heads: int, queries: int, keys: int, size: int, *, kind: str, scale: float, threads: int) -> Setting:
    """Rounds by the number of scores: a round of all contestants takes about 80 ns for each of them on two cores."""
    scores = batch * heads * queries * keys
    rounds = 31 if scores <= 2**20 else 11 if scores <= 2**24 else 5 if scores <= 2**26 else 3
    base = kind == "plain" and threads > 1
    slow_rounds = rounds if scores <= 2**24 else (min(rounds, 3) if scores <= 2**26 else 1) if base else 0
    peer_rounds = (3 if scores <= 2**24 else 1) if base and keys <= LONGEST_DENSE else 0
    return Setting(
        batch=batch,
        heads=heads,
        queries=queries,
        keys=keys,
        size=size,
        kind=kind,
        scale=scale,
        threads=threads,
        rounds=rounds,
        slow_rounds=slow_rounds,
        peer_rounds=peer_rounds,
    )
