"""The cost model of attention on GPUs: products per pass, and predicted times relative to FlashAttention.

The unit is one product over all allowed pairs: 2 L^2 d flops per head, half of it if causal. `held` is the fraction of blocks
with support, `live` the fraction left by the scout, `steps` the passes of the solver. Counts are exact, and a test compares
them with what Triton's interpreter executes; times are predictions that no hardware has confirmed.
"""

FLASH_FORWARD, FLASH_BACKWARD = 2.0, 5.0  # products of FlashAttention-2
SOLVE = 0.8  # of the time of a product in the output pass: nothing is accumulated; from AdaSplash-2's published forward times
BACKWARD = 1.16  # FlashAttention-2 on an A100 has 73% of the peak forward and 63% backward
LIVE = 1.3  # live blocks per block with support, of synthetic scores with local support
FLASH3 = 1.75  # FlashAttention-3 against 2 on an H100
WIDE = 64  # above this head size dQ takes a second pass


def forward_products(dense: float, live: float, held: float, steps: float) -> float:
    """Scout, solver, and scores and values of the output pass; in blocks or as fractions of all."""
    return dense + steps * live + live + held


def backward_products(held: float, size: int) -> float:
    """dQ: scores, dP, sum w k and sum dS k (wide heads: scores and dP twice, and one sum); dK and dV: four."""
    return held * (8.0 if size <= WIDE else 9.0)


def bytes_read(length: int, size: int, block: int, dense: float, live: float, held: float, steps: float) -> float:
    """Of keys and values in the forward pass of one head, 2 bytes an element; most of it comes from the L2 cache."""
    per_pass = 2.0 * length * size * length / block
    return per_pass * (dense + steps * live + live + held)


def bytes_saved(length: int, block_queries: int, block_keys: int) -> float:
    """For backward, per head: row_max, threshold and support_size, 16 bytes a row, and a byte per pair of blocks."""
    return 16.0 * length + length / block_queries * (length / block_keys)


def relative_time(held: float, *, steps: float = 2.0, live_ratio: float = LIVE, size: int = 64) -> float:
    """Predicted time of forward and backward relative to FlashAttention-2."""
    live = min(1.0, live_ratio * held)
    ours = SOLVE * (1.0 + steps * live) + live + held + BACKWARD * backward_products(held, size)
    return ours / (FLASH_FORWARD + BACKWARD * FLASH_BACKWARD)


def break_even(flash_speed: float = 1.0, **how: float) -> float:
    """The fraction of blocks with support below which we are predicted to be faster; `flash_speed`: FLASH3, for instance."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        faster = relative_time(middle, **how) * flash_speed < 1.0  # type: ignore[arg-type]
        low, high = (middle, high) if faster else (low, middle)
    return low
