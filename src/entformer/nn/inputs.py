"""What attention is called with, checked. In: query, key, value in any layout. Out: whether there is a batch dimension."""

from torch import Tensor

from entformer.errors import ArgumentError

__all__ = ["check_inputs"]


def check_inputs(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    is_causal: bool,
    *,
    sizes: tuple[int, int, int],
    positions: str,
    batch_first: bool,
) -> bool:
    """Whether there is a batch dimension. `sizes`: the last dimensions query, key and value must have."""
    if (key is None) != (value is None):
        raise ArgumentError("give both key and value, or neither with a cache that holds a memory.")
    if key is None and is_causal:
        raise ArgumentError("is_causal needs key and value: a memory has no order the queries share.")
    for name, t, size in zip(("query", "key", "value"), (query, key, value), sizes, strict=True):
        if t is not None and (t.dim() not in (2, 3) or t.dim() != query.dim() or t.shape[-1] != size):
            raise ArgumentError(
                f"{name} has shape {tuple(t.shape)}; it must have 3 dimensions, or 2 without a batch, as many as query, "
                f"and size {size} in the last."
            )
    if key is not None and value is not None and key.shape[:-1] != value.shape[:-1]:
        raise ArgumentError(f"key {tuple(key.shape)} and value {tuple(value.shape)} differ in batch or length.")
    if key is None and positions != "none":
        raise ArgumentError(
            f"{positions!r} needs the places of self-attention; a memory needs positions='none' and another normalizer."
        )
    batch_dim = 0 if batch_first else 1
    if key is not None and query.dim() == 3 and key.shape[batch_dim] != query.shape[batch_dim]:
        raise ArgumentError(
            f"query {tuple(query.shape)} and key {tuple(key.shape)} differ in batch size, dimension {batch_dim} "
            f"as batch_first={batch_first}."
        )
    return query.dim() == 3
