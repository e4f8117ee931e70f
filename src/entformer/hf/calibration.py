"""Calibration: fits alpha and score scale of every head to the softmax weights, without training.

    P(alpha, scale) = entmax(scale * S, alpha)          S: the head's scores on a sample of queries, P0 = softmax(S)
    cost            = JS / JS* + damage / damage*       JS: Jensen-Shannon divergence of P and P0, mean over queries
    damage          = 1/2 d' F d, mean over queries     d = (P - P0) V; F = mean of g g', g the gradient of -log p(sampled
                      token) at the head's output (an estimate of the Fisher information); or |d W|^2 if there are no logits
    allocation      minimize sum over heads of cost(candidate) + price * density(candidate)

A larger alpha cuts the tail of a row, a smaller scale restores its flatness. Every head chooses from one grid of (alpha, scale)
with one price for density, found by bisection, so that sparsity goes where it costs least; (1, 1) is in the grid, and heads
that cannot be made sparse cheaply keep it. JS* and damage* are the totals of the allocation by JS alone.

These costs take heads one by one, but errors of heads add up or cancel. With `rounds`, the model runs with the allocation, each
head's damage is weighted by its share of the measured divergence (`attribution`) over its share of the damage, and heads choose
again with the weighted damage as cost.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.hf.attribution import divergence_shares
from entformer.hf.capture import Captured, capture
from entformer.hf.heads import sparse_heads
from entformer.hf.settings import settings_of
from entformer.hf.texts import Text, model_inputs
from entformer.kernels.entmax.api import entmax

ALPHAS = (1.04, 1.08, 1.12, 1.16, 1.2, 1.25, 1.3, 1.36, 1.43, 1.5, 1.65, 2.0)
SCALES = (0.25, 0.31, 0.37, 0.44, 0.52, 0.6, 0.7, 0.82, 0.95)
SHARPER = ((1.5, 1.3), (2.0, 1.3), (2.0, 1.8), (2.0, 2.5), (2.0, 4.0))  # for heads that are almost uniform
CANDIDATES = [(1.0, 1.0), *((alpha, scale) for alpha in ALPHAS for scale in SCALES), *SHARPER]
TINY = 1e-30  # logarithms of denormal numbers are not reliable
COSTS = ("auto", "js", "fisher", "output")
LEAST_SHARE = 0.3  # of a mean share: added to both shares of a head, because small ones are mostly noise
WEIGHTS = 0.1, 6.0  # the range of the weights of heads

Progress = Callable[[str, int, int], None]  # what, done, of how many


@dataclass(frozen=True, eq=False)
class Grid:
    """What every candidate does to every head of a module: (candidates, heads) each, means over sampled queries."""

    density: Tensor  # nonzero weights over allowed pairs
    js: Tensor
    damage: Tensor
    pairs: float  # allowed pairs of a head


@dataclass(frozen=True, eq=False)
class Calibration:
    """The result of `calibrate`."""

    density: float
    """Nonzero weights over allowed pairs, all heads together, on the calibration text."""
    divergence: float
    """An estimate of the KL divergence of predictions from those of the dense model, in nats; too low by a factor of 1 to 3."""
    dense_heads: int
    """How many heads keep softmax."""
    heads: int
    alphas: dict[str, Tensor] = field(default_factory=dict)
    scales: dict[str, Tensor] = field(default_factory=dict)
    grids: dict[str, Grid] = field(default_factory=dict, repr=False)
    cost: str = "auto"
    weights: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """How much the cost of each head counts, found in the rounds of `calibrate`."""

    def choose(self, model: nn.Module, *, density: float | None = None, max_divergence: float | None = None) -> "Calibration":
        """Sets alphas and scales for another density from the same measurements, without reading a text.

        Args:
            model: The model that was calibrated.
            density, max_divergence: As for `calibrate`.

        Returns:
            The density and divergence expected, and the alphas and scales set.

        Raises:
            ArgumentError: An argument is invalid, or the model has other heads than the one that was calibrated.
        """
        settings, target = settings_of(model), _target(density, max_divergence)
        heads = dict(sparse_heads(model))
        if {name: own.num_heads for name, own in heads.items()} != {name: g.js.shape[1] for name, g in self.grids.items()}:
            raise ArgumentError("the model has other heads than the one that was calibrated; call entformer.hf.calibrate.")
        chosen = self.allocated(target, max_divergence)
        table = torch.tensor(CANDIDATES, dtype=torch.float64)
        for name, index in chosen.items():
            heads[name].set(alpha=table[index, 0], scale=table[index, 1])
        found = Calibration(
            density=mean_density(self.grids, chosen),
            divergence=total_damage(self.grids, chosen),
            dense_heads=sum(int((index == 0).sum()) for index in chosen.values()),
            heads=sum(len(index) for index in chosen.values()),
            alphas={name: table[index, 0] for name, index in chosen.items()},
            scales={name: table[index, 1] for name, index in chosen.items()},
            grids=self.grids,
            cost=self.cost,
            weights=self.weights,
        )
        settings["calibration"] = settings.get("calibration", {}) | {"density": round(found.density, 4)}
        return found

    def refine(
        self,
        model: nn.Module,
        texts: Iterable[Text],
        *,
        density: float,
        rounds: int = 2,
        tokenizer: Any = None,
        length: int = 512,
        max_tokens: int = 1024,
        progress: Progress | None = None,
    ) -> "Calibration":
        """Sets alphas and scales for another density from the same measurements, with rounds of its own.

        Args:
            model: The model that was calibrated; it has logits.
            texts: The text it was calibrated on.
            density, rounds, tokenizer, length, max_tokens, progress: As for `calibrate`.
        """
        inputs = model_inputs(model, texts, tokenizer=tokenizer, length=length, max_tokens=max_tokens)
        return _refined(model, inputs, replace(self, weights={}), _target(density, None), rounds, progress)

    def allocated(self, density: float, max_divergence: float | None = None) -> dict[str, Tensor]:
        """Returns the index of the chosen candidate of every head, (heads,) per module."""
        return allocate(self.grids, density, max_divergence=max_divergence, cost=self.cost, weights=self.weights)


def calibrate(
    model: nn.Module,
    texts: Iterable[Text],
    *,
    density: float | None = None,
    max_divergence: float | None = None,
    tokenizer: Any = None,
    cost: str = "auto",
    length: int | None = None,
    max_tokens: int = 1024,
    queries: int = 96,
    rounds: int = 0,
    progress: Progress | None = None,
) -> Calibration:
    """Sets alpha and scale of every head so that the weights are sparse and as close to the softmax weights as possible.

    No weight of the model changes and nothing is trained. The fit holds at the length of the calibration text: longer texts
    give a lower density.

    Args:
        model: A model converted by `sparsify`.
        texts: Text to calibrate on, some hundred tokens of the kind the model is used for. Strings, ids of tokens, pairs
            (source, target) for an encoder-decoder, or keyword arguments of the model.
        density: Nonzero weights over allowed pairs, over all heads; 0.1 if `max_divergence` is not given either.
        max_divergence: Instead of a density: the estimated KL divergence from the dense model, in nats per prediction.
        tokenizer: Of strings; by default the one saved with the model.
        cost: "auto", "js", "fisher" (needs logits and a backward pass) or "output" (no backward pass). "auto" adds JS to
            "fisher" if the model has logits, else to "output".
        length: Tokens per window; by default 512. A decoder-only model reads shorter texts joined into windows, with a
            warning if no length is given: the density holds at the length of a window.
        max_tokens: Tokens used in total.
        queries: Queries sampled from each window.
        rounds: How often heads are weighted by their share of the divergence that is measured with all heads sparse, and choose
            again; the choice with the lowest divergence is kept. Not for a model without logits or with `max_divergence`.
        progress: Called with what is done, how far, of how much.

    Returns:
        The density and divergence expected, and the alphas and scales set.

    Raises:
        ArgumentError: An argument is invalid, or the model was not converted.
    """
    _target(density, max_divergence)
    if cost not in COSTS:
        raise ArgumentError(f"cost={cost!r} is not known; choose one of {', '.join(COSTS)}.")
    settings = settings_of(model)
    warn, length = length is None, 512 if length is None else length
    inputs = model_inputs(model, texts, tokenizer=tokenizer, length=length, max_tokens=max_tokens, warn_if_joined=warn)
    heads = dict(sparse_heads(model))
    before = {name: [value.detach().clone() for value in own()] for name, own in heads.items()}
    for own in heads.values():
        own.set(alpha=1.0, scale=1.0)
    try:
        wants_gradient = cost in ("auto", "fisher")
        captured = capture(model, inputs, list(heads), queries=queries, gradients=wants_gradient, progress=progress)
        if cost == "fisher" and not all(own.fisher is not None for own in captured.values()):
            raise ArgumentError('cost="fisher" needs a model with logits; use cost="output".')
        grids = {}
        for number, (name, seen) in enumerate(captured.items()):
            grids[name] = measure_candidates(seen)
            if progress is not None:
                progress("fitting heads", number + 1, len(captured))
    except BaseException:
        for name, own in heads.items():
            own.set(*before[name])
        raise
    tokens = sum(int(entry["input_ids"].numel()) for entry in inputs if "input_ids" in entry)
    settings["calibration"] = {"tokens": tokens, "length": length, "cost": cost}
    found = Calibration(1.0, 0.0, 0, 0, grids=grids, cost=cost).choose(model, density=density, max_divergence=max_divergence)
    if max_divergence is not None or not all(own.fisher is not None for own in captured.values()):
        return found
    return _refined(model, inputs, found, 0.1 if density is None else density, rounds, progress)


def _refined(
    model: nn.Module,
    inputs: Sequence[Mapping[str, Any]],
    first: Calibration,
    density: float,
    rounds: int,
    progress: Progress | None,
) -> Calibration:
    """Weights heads by their share of the measured divergence, and sets the choice with the lowest one."""
    best = found = first.choose(model, density=density)
    lowest, measured = math.inf, []
    for number in range(rounds + 1 if rounds > 0 and found.dense_heads < found.heads else 0):
        divergence, shares = divergence_shares(model, inputs)
        if divergence < lowest:
            best, lowest = found, divergence
        if number < rounds:
            chosen = found.allocated(density)
            measured.append((shares, {name: _chosen(grid.damage, chosen[name]) for name, grid in found.grids.items()}))
            found = replace(found, cost="fisher", weights=_weights(measured)).choose(model, density=density)
        if progress is not None:
            progress("weighting heads", number + 1, rounds + 1)
    return best.choose(model, density=density)


def _weights(measured: Sequence[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]) -> dict[str, Tensor]:
    """Returns shares of the divergence over shares of the damage, both summed over rounds; small shares are mostly noise, so
    the ratio of the module counts, too."""
    sums = []
    for parts in zip(*measured, strict=True):
        totals = [max(sum(float(own.sum()) for own in part.values()), TINY) for part in parts]
        sums.append({name: sum(part[name] / total for part, total in zip(parts, totals, strict=True)) for name in parts[0]})
    least = LEAST_SHARE * len(measured) / sum(len(own) for own in measured[0][0].values())
    found = {}
    for name, damage in sums[1].items():
        share = sums[0][name]
        module = float(((share.sum() + least) / (damage.sum() + least)).clamp(*WEIGHTS))
        found[name] = ((share + least * module) / (damage + least)).clamp(*WEIGHTS)
    return found


def _target(density: float | None, max_divergence: float | None) -> float:
    if density is not None and max_divergence is not None:
        raise ArgumentError("density and max_divergence are both given; pass one of them.")
    target = 0.1 if density is None else density
    if not 0.0 < target <= 1.0:
        raise ArgumentError(f"density={target} must be above 0 and at most 1.")
    return target


@torch.no_grad()
def measure_candidates(captured: Captured, candidates: Sequence[tuple[float, float]] = CANDIDATES) -> Grid:
    """Computes density, JS and damage of every candidate for every head of a module."""
    shape = len(candidates), captured.heads
    nonzero, js, damage = torch.zeros(3, *shape, dtype=torch.float64)
    rows, pairs = 0, 0.0
    for sample in captured.samples:
        scores, mask = sample.scores(1.0)  # (H, R, K), (1 or H, R, K)
        dense = entmax(scores, 1.0, mask=mask)
        dense_entropy = _entropy(dense)
        rows += scores.shape[1]
        pairs += float(mask.expand_as(scores)[0].sum())
        for scale in {scale for _, scale in candidates}:
            scaled, _ = sample.scores(scale)
            for index, (alpha, own) in enumerate(candidates):
                if own != scale:
                    continue
                weights = dense if (alpha, scale) == (1.0, 1.0) else entmax(scaled, alpha, mask=mask)
                nonzero[index] += (weights > 0).sum((1, 2))
                if weights is dense:
                    continue
                entropy = _entropy(0.5 * (weights + dense)) - 0.5 * (_entropy(weights) + dense_entropy)
                js[index] += entropy.clamp_min(0.0).double()
                damage[index] += captured.damage((weights - dense) @ sample.value).double()
    return Grid(nonzero / pairs, js / rows, damage / rows, pairs)


def _entropy(weights: Tensor) -> Tensor:
    """Returns the entropies of rows, summed over the rows of each head, (H,)."""
    entropies: Tensor = torch.special.entr(weights.clamp_min(TINY)).sum((1, 2))
    return entropies


def allocate(
    grids: Mapping[str, Grid],
    density: float,
    *,
    max_divergence: float | None = None,
    cost: str = "auto",
    weights: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Returns the index of the chosen candidate of every head, (heads,) per module.

    Args:
        grids: What every candidate does.
        density: The density of all heads together.
        max_divergence: Instead of a density, a bound on the total damage.
        cost: As for `calibrate`.
        weights: How much the cost of each head counts; 1 by default.
    """
    costs = head_costs(grids, density, max_divergence, cost)
    if weights:
        costs = {name: own * weights[name] for name, own in costs.items()}
    return _allocate(costs, grids, density, max_divergence)


def head_costs(grids: Mapping[str, Grid], density: float, max_divergence: float | None, cost: str) -> dict[str, Tensor]:
    """Returns the cost of every candidate, (candidates, heads) per module."""
    if cost in ("fisher", "output"):
        return {name: grid.damage for name, grid in grids.items()}
    by_js = {name: grid.js for name, grid in grids.items()}
    if cost == "js":
        return by_js
    first = _allocate(by_js, grids, density, max_divergence)
    js, damage = (
        sum(float(_chosen(getattr(grids[name], what), own).sum()) for name, own in first.items()) for what in ("js", "damage")
    )
    if js <= 0.0 or damage <= 0.0:
        return by_js
    return {name: grid.js / js + grid.damage / damage for name, grid in grids.items()}


def _allocate(
    costs: Mapping[str, Tensor], grids: Mapping[str, Grid], density: float, max_divergence: float | None
) -> dict[str, Tensor]:
    """Bisects the price of density, on a logarithmic scale, until the target is met from below."""

    def at(price: float) -> dict[str, Tensor]:
        return {name: (cost + price * grids[name].density * grids[name].pairs).argmin(0) for name, cost in costs.items()}

    def meets(chosen: Mapping[str, Tensor]) -> bool:
        if max_divergence is not None:
            return total_damage(grids, chosen) > max_divergence
        return mean_density(grids, chosen) <= density

    scale = max(float(cost.max()) for cost in costs.values()) or 1.0
    low, high = math.log(1e-12 * scale), math.log(1e6 * scale)
    if not meets(at(math.exp(high))):  # the sparsest candidates do not reach the target
        return at(math.exp(high))
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if meets(at(math.exp(middle))) else (middle, high)
    return at(math.exp(high if max_divergence is None else low))


def mean_density(grids: Mapping[str, Grid], chosen: Mapping[str, Tensor]) -> float:
    """Returns nonzero weights over allowed pairs, all heads together."""
    nonzero = sum(float(_chosen(grids[name].density, own).sum()) * grids[name].pairs for name, own in chosen.items())
    return nonzero / sum(len(own) * grids[name].pairs for name, own in chosen.items())


def total_damage(grids: Mapping[str, Grid], chosen: Mapping[str, Tensor]) -> float:
    """Returns the damage of all heads together."""
    return sum(float(_chosen(grids[name].damage, own).sum()) for name, own in chosen.items())


def _chosen(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(0, index[None])[0]
