"""The kernels with the types of their arguments, as launches have them: for compiling ahead of time, without tensors.

A leaf of the arguments is the name of a type, with "!" at the end where a launch would find a multiple of 16, or a `Constant`.
"""

from typing import Any, NamedTuple

import torch

from entformer.kernels.attention.triton import configs, launch
from entformer.kernels.attention.triton.scores import Packed, Pairs, PerHead, PerKey, Problem, Rows
from entformer.kernels.entmax.triton import rows

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


class Constant(NamedTuple):
    """An argument the kernel is specialized on."""

    value: Any


NOTHING = Constant(None)


def signature(
    kernel: str, mode: str, size: int, dtype: str, features: tuple[str, ...], backend: str
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The kernel, its arguments by name and its options; `size` is the head size, or the length of rows of entmax;
    `backend` is "cuda" or "hip".

    Features: causal, window, masks, bias, sinks, packed, dropout.
    """
    if kernel in ("weights", "gradients"):
        return _rows(kernel, size, dtype)
    config = configs.config(size, DTYPES[dtype])
    fixed: dict[str, Any] = {"MODE": launch.MODES[mode], "BM": config.queries, "BN": config.keys}
    parts = configs.parts(fixed["MODE"], DTYPES[dtype])
    if kernel in ("back_q", "back_kv"):
        fixed |= {"PARTS": parts} | ({"BM": config.queries // parts} if kernel == "back_kv" else {"BN": config.keys // parts})
    fixed |= {"D": size, "DP": configs.padded(size), "E": size, "EP": configs.padded(size), "UP": False}
    floats, doubles = "*fp32!", "*fp64!"
    lists, counts = "*i16!", "*i32!"
    matrix = Rows(f"*{dtype}!", "i32!", "i32!", "i32!")
    has_alpha = mode == "entmax"
    arguments: dict[str, dict[str, Any]] = {
        "scout": {"row_max": floats, "threshold": floats, "live_map": "*u8!", "counters": NOTHING},
        "solve": {"row_max": floats, "threshold": floats, "lists": lists, "counts": counts, "counters": NOTHING},
        "output": {
            **{
                "row_max": floats,
                "threshold": floats,
                "lists": lists,
                "counts": counts,
                "out": matrix,
                "exact_threshold": doubles,
            },
            **{"size": "*i32!", "entropy": NOTHING, "held_map": "*u8!", "counters": NOTHING},
        },
        "back_q": {
            **{"grad_output": matrix, "row_max": floats, "threshold": doubles, "lists": lists, "counts": counts},
            **{"grad_query": matrix, "delta": floats, "of_alpha": floats if has_alpha else NOTHING},
            **{"of_sink": floats if "sinks" in features else NOTHING, "of_slope": NOTHING},
            "grad_bias": Pairs("*fp32!", "i32!", "i32!", "i32!", Constant(1)) if "bias" in features else NOTHING,
        },
        "back_kv": {
            **{"grad_output": matrix, "row_max": floats, "threshold": doubles, "delta": floats, "lists": lists},
            **{"counts": counts, "grad_key": matrix, "grad_value": matrix},
        },
    }
    blocks = {"query_blocks": "i32"} if kernel == "back_kv" else {"key_blocks": "i32"}
    found = {"p": _problem(matrix, features), **arguments[kernel], **blocks}
    function = getattr(launch, kernel)
    found |= {name: Constant(value) for name, value in fixed.items() if name in function.arg_names}
    options = {"num_warps": config.warps, "num_stages": config.stages}
    return function, found, options | (configs.solver_options(fixed["MODE"], backend) if kernel == "solve" else {})


def _problem(matrix: Rows, features: tuple[str, ...]) -> Problem:
    def given(feature: str, value: Any) -> Any:
        return value if feature in features else NOTHING

    per_head = PerHead("*fp32!", "i32", Constant(1))
    return Problem(
        query=matrix,
        key=matrix,
        value=matrix,
        alpha=PerHead("*fp64!", "i32", Constant(1)),
        attn_mask=given("masks", Pairs("*u8!", "i32!", "i32!", "i32!", Constant(1))),
        key_mask=given("masks", PerKey("*u8!", "i32!", Constant(1))),
        bias=given("bias", Pairs("*fp32!", "i32!", "i32!", "i32!", Constant(1))),
        slopes=given("bias", per_head),
        sinks=given("sinks", per_head),
        packed=given("packed", Packed("*i32!", "*i32!", "*i32!")),
        hazard="*fp32!",
        heads="i32!",
        group="i32",
        queries="i32!",
        keys="i32!",
        scale="fp32",
        offset="i32",
        left=given("window", "i32"),
        right="i32" if {"causal", "window"} & set(features) else NOTHING,
        softcap=given("bias", "fp32"),
        seeds=given("dropout", "*i64!"),
        rows_per_seed="i64!",
        drop="fp32",
    )


def _rows(kernel: str, length: int, dtype: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    count, columns = rows._tiles(length)
    values = f"*{dtype}!"
    found: dict[str, Any] = {"scores": values, "alpha": "*fp64!", "out": values}
    if kernel == "gradients":
        found = {"grad": values, "output": values, "alpha": "*fp64!", "grad_scores": values, "grad_alpha": "*fp64!"}
    found |= {"rows": "i32", "n": "i32!", "R": Constant(count), "BN": Constant(columns)}
    if kernel == "weights":
        found["WHOLE"] = Constant(length <= columns)
    return getattr(rows, kernel), found, {"num_warps": 4, "num_stages": 2}


def flattened(kernel: Any, arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[Any, Any], dict[Any, Any]]:
    """Types by name, constants and attributes by the place of a leaf, as `triton.compiler.ASTSource` takes them."""
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}

    def types(value: Any, place: tuple[int, ...]) -> Any:
        if isinstance(value, Constant):
            constants[place] = value.value
            return "constexpr"
        if isinstance(value, tuple):
            return type(value)(*(types(part, (*place, index)) for index, part in enumerate(value)))
        if value.endswith("!"):
            attributes[place] = [["tt.divisibility", 16]]
        return value.rstrip("!")

    names = {name: types(arguments[name], (index,)) for index, name in enumerate(kernel.arg_names)}
    return names, constants, attributes
