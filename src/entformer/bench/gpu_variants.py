"""The variants of the GPU kernels that the compile manifest compiles, each from the launch of an example call.

A launch is recorded instead of run, so what is compiled has the arguments that a GPU would get: types, constants, and which
pointers and integers are multiples of 16.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from entformer.kernels.attention.arguments import Call, Features

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
TYPE_NAMES = {
    **{value: name for name, value in DTYPES.items()},
    **{torch.float64: "fp64", torch.uint8: "u8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64"},
}


class Variant(NamedTuple):
    """One kernel with its constants."""

    kernel: str
    mode: str
    head_size: int  # or length of the rows of entmax
    dtype: str
    features: tuple[str, ...] = ("causal",)

    def __str__(self) -> str:
        return " ".join([self.kernel, self.mode, f"D={self.head_size}", self.dtype, *self.features])


ATTENTION = ("scout", "solve", "output", "back_q", "back_kv")
HOT = tuple(Variant(k, m, d, "bf16") for d in (64, 128) for m in ("entmax15", "entmax") for k in ATTENTION)
ROWS = tuple(Variant(kernel, "entmax", n, "fp32", ()) for kernel in ("weights", "gradients") for n in (128, 4096))
UNSOLVED = ("softmax", "relu", "sigmoid")  # modes without a solver
FULL = (
    *HOT,
    *ROWS,
    *(Variant(k, "sparsemax", 64, "bf16") for k in ATTENTION),
    *(Variant(k, m, 64, "bf16") for m in UNSOLVED for k in ATTENTION if k != "solve"),
    *(Variant(k, "entmax", d, "fp16") for d in (16, 32, 256) for k in ATTENTION),
    *(Variant(k, "entmax", 64, "fp32") for k in ATTENTION),
    *(
        Variant(k, "entmax", 64, "bf16", (f,))
        for f in ("masks", "dropout", "window", "bias", "sinks", "packed")
        for k in ATTENTION
    ),
    Variant("support", "entmax", 64, "bf16"),
)


class Source(NamedTuple):
    """What Triton compiles: a kernel, types by name, constants and attributes by the place of an argument, options."""

    kernel: Any
    types: dict[str, Any]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]
    options: dict[str, int]


def source(variant: Variant, backend: str) -> Source:
    """The launch of a variant on "cuda" or "hip"."""
    from entformer.kernels.attention.triton import configs, launch
    from entformer.kernels.entmax.triton.launches import recording

    with recording() as launches:
        if variant in ROWS:
            _run_rows(variant)
        else:
            _run_attention(variant)
    found = next(entry for entry in launches if entry.kernel.__name__ == variant.kernel)
    options = found.options
    if variant not in ROWS:
        mode = launch.MODES[variant.mode]
        options = configs.options(variant.head_size, DTYPES[variant.dtype], variant.kernel, mode, backend)
    values = dict(zip(found.kernel.arg_names, found.arguments, strict=False)) | found.constants
    return _flattened(found.kernel, [values[name] for name in found.kernel.arg_names], backend, options)


def _run_rows(variant: Variant) -> None:
    from entformer.kernels.entmax.triton import rows

    scores = torch.zeros(64, variant.head_size, dtype=DTYPES[variant.dtype])
    alpha = torch.full((64,), 1.5, dtype=torch.float64)
    rows.entmax_backward(scores, rows.entmax(scores, alpha), alpha, True)


def _run_attention(variant: Variant) -> None:
    from entformer.kernels.attention.triton import launch

    plan = launch.Plan(example(variant))
    out, row_max, threshold, _size, _entropy, reserve = launch.forward(plan, False)
    has = {feature: feature in variant.features for feature in ("bias", "sinks")}
    needs = (variant.mode == "entmax", has["bias"], has["sinks"], has["bias"])
    launch.backward(plan, torch.zeros_like(out), row_max, threshold, reserve, *needs)
    begins = torch.ones(row_max.numel() + 1, dtype=torch.int64)
    launch.attention_support(plan, row_max, threshold, begins)


def example(variant: Variant) -> Call:
    """A call of the operator for which the variant runs."""
    batch, heads, length = 1 if "packed" in variant.features else 2, 16, 256
    q = torch.zeros(batch, heads, length, variant.head_size, dtype=DTYPES[variant.dtype])

    def given(feature: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor | None:
        return torch.zeros(shape, dtype=dtype) if feature in variant.features else None

    boundaries = torch.tensor([0, length], dtype=torch.int32) if "packed" in variant.features else None
    windowed = "window" in variant.features
    return Call(
        query=q,
        key=q,
        value=q,
        alpha=torch.full((batch, heads), 1.5, dtype=torch.float64),
        attn_mask=given("masks", batch, heads, length, length, dtype=torch.bool),
        key_mask=given("masks", batch, length, dtype=torch.bool),
        alibi_slopes=given("bias", batch, heads),
        normalizer=variant.mode,
        scale=1.0 / math.sqrt(variant.head_size),
        is_causal="causal" in variant.features,
        causal_offset=0,
        dropout_p=0.1 if "dropout" in variant.features else 0.0,
        dropout_seed=torch.zeros((), dtype=torch.int64),
        features=Features(
            bias=given("bias", batch, heads, length, length),
            sinks=given("sinks", batch, heads),
            cu_seqlens_q=boundaries,
            cu_seqlens_k=boundaries,
            window_left=length // 4 if windowed else None,
            window_right=length // 4 if windowed else None,
            softcap=30.0 if "bias" in variant.features else None,
        ),
    )


def _flattened(kernel: Any, values: list[Any], backend: str, options: dict[str, int]) -> Source:
    """Values as `triton.compiler.ASTSource` takes them, specialized as Triton does at a launch."""
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    aligned = [["tt.divisibility", 16]]

    def kind(value: Any, place: tuple[int, ...]) -> Any:
        if isinstance(value, Tensor):
            small = [["tt.pointer_range", 32]] if backend == "hip" else []
            attributes[place] = (aligned if value.data_ptr() % 16 == 0 else []) + small
            return f"*{TYPE_NAMES[value.dtype]}"
        if isinstance(value, tuple):
            return type(value)(*(kind(part, (*place, index)) for index, part in enumerate(value)))
        if isinstance(value, float):
            return "fp32"
        if isinstance(value, int) and value != 1 and not kernel.params[place[0]].is_constexpr:
            attributes[place] = aligned if value % 16 == 0 else []
            return "i32"
        constants[place] = value
        return "constexpr"

    types = {name: kind(value, (index,)) for index, (name, value) in enumerate(zip(kernel.arg_names, values, strict=True))}
    return Source(kernel, types, constants, attributes, options)
