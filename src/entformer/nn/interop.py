"""Interoperability with torch: parameters, projections, state dicts and containers of torch.nn.MultiheadAttention.

`TorchAttention` is the base class that replaces torch.nn.MultiheadAttention; its subclass in nn/multihead_attention.py computes
the weights.
"""

from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError, EntformerError
from entformer.nn.cache import KeyValueCache
from entformer.nn.linear import Linear, linear

__all__ = ["TorchAttention", "from_nested", "to_nested"]


def _block_fast_path(module: nn.Module, arguments: tuple[Any, ...]) -> None:
    """A forward pre-hook that does nothing. TransformerEncoderLayer computes softmax by itself unless it finds a hook."""


def from_nested(
    query: Tensor, key: Tensor | None, value: Tensor | None, batch_first: bool, unmasked: bool
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Returns padded query, key and value (B, L, size), and which keys are not padding, (B, Lk).

    Args:
        batch_first: of the module; nested tensors are.
        unmasked: whether neither masks nor a cache were given: nested tensors carry the length of each sequence.
    """
    if key is None or value is None or not (query.is_nested and key.is_nested and value.is_nested):
        raise ArgumentError("query, key and value must all be nested tensors, or none of them.")
    if not batch_first or query.dim() != 3:
        raise ArgumentError("nested tensors must be (B, lengths, size) and need batch_first=True.")
    if not unmasked:
        raise ArgumentError("nested tensors cannot go with masks or a cache; pad them first.")
    if _lengths(key) != _lengths(value):
        raise ArgumentError(f"key and value have sequences of lengths {_lengths(key)} and {_lengths(value)}; they must agree.")
    padded_query = query.to_padded_tensor(0.0)
    padded_key = padded_query if key is query else key.to_padded_tensor(0.0)
    padded_value = padded_key if value is key else value.to_padded_tensor(0.0)
    lengths = torch.tensor(_lengths(key), device=key.device)
    key_mask = torch.arange(padded_key.shape[1], device=key.device) < lengths[:, None]
    return (padded_query, padded_key, padded_value), key_mask


def to_nested(padded: Tensor, like: Tensor) -> Tensor:
    """Returns padded (B, L, size) as a nested tensor with the lengths and the layout of `like`."""
    rows = [row[:length] for row, length in zip(padded.unbind(), _lengths(like), strict=True)]
    nested: Tensor = torch.nested.as_nested_tensor(rows, layout=like.layout)
    return nested


def _lengths(t: Tensor) -> list[int]:
    return [row.shape[0] for row in t.unbind()]


class TorchAttention(nn.MultiheadAttention):
    """torch.nn.MultiheadAttention without its `forward`, which torch's fast path cannot replace by softmax.

    nn.TransformerEncoderLayer skips the `forward` of its attention in evaluation (the fast path) unless a hook is attached; so
    one is.
    """

    in_proj_weight: nn.Parameter | None  # type: ignore[assignment]
    q_proj_weight: nn.Parameter | None  # type: ignore[assignment]
    k_proj_weight: nn.Parameter | None  # type: ignore[assignment]
    v_proj_weight: nn.Parameter | None  # type: ignore[assignment]
    in_proj_bias: nn.Parameter | None  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.out_proj = Linear.sharing(self.out_proj)  # type: ignore[assignment]  # torch's kind of Linear differs by name only
        self.register_forward_pre_hook(_block_fast_path)

    def reset_parameters(self) -> None:
        """Initializes the projections as torch does, then the parameters of the normalizer."""
        self.out_proj.reset_parameters()
        self._reset_parameters()
        for own in self.children():
            if own is not self.out_proj and callable(reset := getattr(own, "reset_parameters", None)):
                reset()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # Exactly torch.nn.MultiheadAttention's entries: the others keep their values. On the meta device they have none.
        own = self.state_dict()
        of_torch = {name for name in own if "." not in name or name.startswith("out_proj.")}
        if {name.removeprefix(prefix) for name in state_dict if name.startswith(prefix)} == of_torch:
            kept = {name: value for name, value in own.items() if name not in of_torch}
            state_dict |= {prefix + name: value for name, value in kept.items() if not getattr(value, "is_meta", False)}
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __prepare_scriptable__(self) -> NoReturn:
        raise EntformerError(
            f"torch.jit.script cannot compile {type(self).__name__}; use torch.export.export, torch.compile, or "
            "torch.jit.trace under torch.no_grad()."
        )

    def merge_masks(self, *masks: Any) -> NoReturn:
        """Raises: torch calls this to compute softmax in place of `forward`, so the hook that prevents it is gone."""
        raise ArgumentError(
            "torch's fast path would compute softmax here; call torch.backends.mha.set_fastpath_enabled(False), or keep the "
            "forward pre-hook of MultiheadAttention."
        )

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, **options: Any) -> Self:
        """Copies a torch module: `MultiheadAttention.from_torch(layer.self_attn, normalizer="entmax")`."""
        ours = cls(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            module.in_proj_bias is not None,
            module.bias_k is not None,
            module.add_zero_attn,
            module.kdim,
            module.vdim,
            module.batch_first,
            module.out_proj.weight.device,
            module.out_proj.weight.dtype,
            **options,
        )
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                ours.get_parameter(name).copy_(parameter).requires_grad_(parameter.requires_grad)
        return ours.train(module.training)

    @classmethod
    def convert(cls, model: nn.Module, **options: Any) -> nn.Module:
        """Replaces every torch.nn.MultiheadAttention inside `model` by a copy made by `from_torch`.

        `MultiheadAttention.convert(nn.Transformer(512, 8), normalizer="entmax")`. The model is changed in place and returned;
        a model that is itself a torch.nn.MultiheadAttention is not changed, its copy is returned. What is converted already
        stays as it is. A model without attention of torch raises `ArgumentError`: nothing would have changed.
        """
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model must be a torch.nn.Module, not {type(model).__name__}.")
        if not any(isinstance(module, nn.MultiheadAttention) for module in model.modules()):
            raise ArgumentError(
                f"{type(model).__name__} has no torch.nn.MultiheadAttention to convert; use ef.attention inside your own "
                "attention, or ef.hf.sparsify for a Hugging Face model."
            )
        return cls._convert(model, options, {})

    @classmethod
    def _convert(cls, model: nn.Module, options: dict[str, Any], copies: dict[nn.Module, nn.Module]) -> nn.Module:
        if isinstance(model, TorchAttention):
            return model
        if isinstance(model, nn.MultiheadAttention):  # one that two layers share stays shared
            return copies[model] if model in copies else copies.setdefault(model, cls.from_torch(model, **options))
        for name, child in model.named_children():
            setattr(model, name, cls._convert(child, options, copies))
        return model

    def _check_inputs(self, query: Tensor, key: Tensor | None, value: Tensor | None, is_causal: bool, positions: str) -> None:
        """Raises unless the shapes fit. `positions`: what depends on the positions of keys, or "none"."""
        if (key is None) != (value is None):
            raise ArgumentError("give both key and value, or neither with a cache that holds a memory.")
        if key is None and is_causal:
            raise ArgumentError("is_causal needs key and value: the queries have no position in a memory.")
        sizes = ("query", query, self.embed_dim), ("key", key, self.kdim), ("value", value, self.vdim)
        for name, t, size in sizes:
            if t is None or (t.dim() in (2, 3) and t.dim() == query.dim() and t.shape[-1] == size):
                continue
            if t.dim() not in (2, 3):
                expected = "it must have 3 dimensions, or 2 without a batch"
            elif t.dim() != query.dim():
                expected = f"it must have as many dimensions as query, {query.dim()}"
            else:
                own = "embed_dim" if size == self.embed_dim else f"{name[0]}dim"  # kdim and vdim are embed_dim by default
                expected = f"its last dimension must be {own}={size}, not {t.shape[-1]}"
            raise ArgumentError(f"{name} has shape {tuple(t.shape)}; {expected}.")
        if key is None or value is None:
            if positions != "none":
                raise ArgumentError(
                    f"{positions!r} needs the positions of self-attention; a memory needs positions='none' and another "
                    "normalizer."
                )
            return
        if key.shape[:-1] != value.shape[:-1]:
            raise ArgumentError(f"key {tuple(key.shape)} and value {tuple(value.shape)} differ in batch or length.")
        batch_dim = 0 if self.batch_first else 1
        if query.dim() == 3 and key.shape[batch_dim] != query.shape[batch_dim]:
            raise ArgumentError(
                f"query {tuple(query.shape)} and key {tuple(key.shape)} differ in batch size, dimension {batch_dim} "
                f"as batch_first={self.batch_first}."
            )

    def _batch_first(self, t: Tensor) -> Tensor:
        """Returns an input in any layout as (B, L, size)."""
        return t[None] if t.dim() == 2 else t if self.batch_first else t.transpose(0, 1)

    def _project(
        self, x: Tensor, query: Tensor, key: Tensor | None, value: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Projects to q, k and v, (B, H, L, head size); one product where inputs are one tensor and weights are packed."""
        size, packed, bias = self.embed_dim, self.in_proj_weight, self.in_proj_bias
        if packed is not None and query is key and key is value:
            q, k, v = linear(x, packed, bias).chunk(3, -1)
            return self._heads(q), self._heads(k), self._heads(v)
        weight = self.q_proj_weight if packed is None else packed[:size]
        q = self._heads(linear(x, weight, None if bias is None else bias[:size]))  # type: ignore[arg-type]  # one is there
        if key is None or value is None:
            return q, None, None
        return q, *self._project_memory(key, value)

    def _project_memory(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        size, packed, bias = self.embed_dim, self.in_proj_weight, self.in_proj_bias
        if packed is not None and key is value:
            k, v = linear(self._batch_first(key), packed[size:], None if bias is None else bias[size:]).chunk(2, -1)
        else:
            w_k, w_v = (self.k_proj_weight, self.v_proj_weight) if packed is None else packed[size:].chunk(2)
            b_k, b_v = (None, None) if bias is None else bias[size:].chunk(2)
            k = linear(self._batch_first(key), w_k, b_k)  # type: ignore[arg-type]  # either packed or all weights are there
            v = linear(self._batch_first(value), w_v, b_v)  # type: ignore[arg-type]
        return self._heads(k), self._heads(v)

    def memory_cache(self, memory: Tensor) -> KeyValueCache:
        """Projects a memory to keys and values once: call forward with key and value None and the returned cache."""
        k, v = self._project_memory(memory, memory)
        cache = KeyValueCache(max(k.shape[2], 1))
        cache.append(k, v)
        return cache

    def _heads(self, t: Tensor) -> Tensor:
        """(B, L, E) -> (B, H, L, head size), a view."""
        heads: Tensor = t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        return heads

    def _with_extra_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The learned key and value (add_bias_kv) and the zero ones (add_zero_attn), before the others."""
        parts: list[list[Tensor]] = [[], []]
        for part, learned, t in zip(parts, (self.bias_k, self.bias_v), (k, v), strict=True):
            if learned is not None:
                part.append(self._heads(learned).to(t.dtype).expand(t.shape[0], -1, -1, -1))
            if self.add_zero_attn:
                part.append(t.new_zeros((*t.shape[:2], 1, t.shape[3])))
            part.append(t)
        return torch.cat(parts[0], 2), torch.cat(parts[1], 2)
