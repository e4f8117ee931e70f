"""A two-layer Transformer learns to copy, its heads learn their alphas, and it then writes copies token by token.

In: `BOS s_1 ... s_n SEP`, then s_1 ... s_n again. Every batch is fresh, so nothing can be learned by heart: the model has to
find, for each place after SEP, the token n + 1 places back.
"""

import torch
from torch import Tensor, nn

from entformer.nn.cache import KeyValueCache
from entformer.nn.multihead_attention import MultiheadAttention

SYMBOLS, LENGTH, SIZE, HEADS, BATCH, STEPS = 12, 8, 48, 4, 48, 250
BOS, SEP = SYMBOLS, SYMBOLS + 1


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(SIZE)
        self.attention = MultiheadAttention(SIZE, HEADS, alpha="learned", batch_first=True)
        self.before_feed_forward = nn.LayerNorm(SIZE)
        self.feed_forward = nn.Sequential(nn.Linear(SIZE, 2 * SIZE), nn.ReLU(), nn.Linear(2 * SIZE, SIZE))

    def forward(self, x: Tensor, cache: KeyValueCache | None) -> Tensor:
        y = self.before_attention(x)
        x = x + self.attention(y, y, y, need_weights=False, is_causal=True, cache=cache)[0]
        out: Tensor = x + self.feed_forward(self.before_feed_forward(x))
        return out


class Copier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(SYMBOLS + 2, SIZE)
        self.place = nn.Embedding(2 * LENGTH + 1, SIZE)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.read = nn.Sequential(nn.LayerNorm(SIZE), nn.Linear(SIZE, SYMBOLS))

    def forward(self, ids: Tensor, caches: list[KeyValueCache] | None = None) -> Tensor:
        """ids (B, L) -> logits (B, L, symbols) of the token after each; ids follow those in the caches."""
        past = 0 if caches is None else caches[0].length
        x = self.token(ids) + self.place.weight[past : past + ids.shape[1]]
        for i, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[i])
        logits: Tensor = self.read(x)
        return logits


def sequences(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """prompt (B, n + 2): BOS, source, SEP; and the source (B, n)."""
    source = torch.randint(SYMBOLS, (size, LENGTH), generator=generator)
    return torch.cat([torch.full((size, 1), BOS), source, torch.full((size, 1), SEP)], 1), source


def alphas_of(model: nn.Module) -> Tensor:
    alphas = [module.alphas for module in model.modules() if isinstance(module, MultiheadAttention)]
    return torch.stack([alpha.detach() for alpha in alphas if alpha is not None])  # (layers, heads)


def train(model: nn.Module, generator: torch.Generator) -> None:
    # Adam without weight decay, which would move alphas by itself. They get a larger rate: the sigmoid in them flattens steps.
    own = [p for name, p in model.named_parameters() if name.endswith("pre_alpha")]
    others = [p for name, p in model.named_parameters() if not name.endswith("pre_alpha")]
    rates = [3e-3, 2e-2]
    optimizer = torch.optim.Adam([{"params": others}, {"params": own}])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=STEPS)
    for _ in range(STEPS):
        prompt, source = sequences(BATCH, generator)
        logits = model(torch.cat([prompt, source[:, :-1]], 1))[:, LENGTH + 1 :]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), source.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def write(model: nn.Module, prompt: Tensor) -> Tensor:
    """What the model writes after the prompt, (B, n), greedily, one token at a time."""
    caches = [KeyValueCache(), KeyValueCache()]
    written = [model(prompt, caches)[:, -1:].argmax(-1)]
    while len(written) < LENGTH:
        written.append(model(written[-1], caches).argmax(-1))
    return torch.cat(written, 1)


def test_copying_is_learned_and_alphas_move() -> None:
    torch.manual_seed(0)
    model = Copier()
    start = alphas_of(model)
    assert start.shape == (2, HEADS)
    train(model, torch.Generator().manual_seed(1))
    prompt, source = sequences(256, torch.Generator().manual_seed(2))  # of 12^8 sequences: these were not seen
    accuracy = (write(model, prompt) == source).float().mean().item()
    assert accuracy >= 0.95, f"token accuracy {accuracy:.3f}; guessing gives {1 / SYMBOLS:.3f}"
    moved = (alphas_of(model) - start).abs()
    assert (moved > 0.01).all(), moved
