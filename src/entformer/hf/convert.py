"""Converts models: `sparsify` gives every attention module alphas and scales, `densify` undoes it exactly."""

import contextlib
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.hf.configs import own_configs, restore, switch, switched
from entformer.hf.coverage import AttentionModule, UnsupportedModel, find_attention
from entformer.hf.heads import SparseHeads, sparse_heads
from entformer.hf.inputs import example_inputs as made_inputs
from entformer.hf.names import DENSE, HEADS, SETTINGS
from entformer.hf.settings import write_settings

KINDS = ("encoder", "decoder", "cross")
ALPHA_OF = {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0}  # normalizers with a fixed alpha
TOLERANCE = 1e-4  # relative: alpha = 1 against the model's own attention; rounding alone can exceed 1e-5 if scores are large


def sparsify(
    model: nn.Module,
    *,
    normalizer: str = "entmax",
    alpha: str | float = "learned",
    init: float = 1.0,
    kinds: str | Collection[str] | None = None,
    layers: Collection[int] | None = None,
    example_inputs: Mapping[str, Any] | None = None,
    allow_partial: bool = False,
    **calibration: Any,
) -> nn.Module:
    """Makes the attention of a Hugging Face model adaptively sparse, in place.

    Every attention module gets a submodule `entmax_norm` with one alpha and one score scale per head. With the default
    arguments the model computes what it computed before (alpha = 1 is softmax); fine-tuning or `calibrate` makes it sparse.

    The model runs once on a small input. If any attention module would keep its own softmax, nothing is changed and all of
    them are listed in the error.

    Args:
        model: A model of transformers.
        normalizer: "entmax"; or "softmax", "entmax15" or "sparsemax" for a fixed alpha of 1, 1.5 or 2.
        alpha: "learned"; a number from 1 to 2, which is fixed; or "calibrated", which calls `calibrate` with the remaining
            arguments (`texts`, `density`, ...) and leaves the alphas trainable.
        init: The initial alpha if it is learned.
        kinds: Attention types to convert: "encoder", "decoder" (causal self-attention), "cross". All by default.
        layers: Layers to convert, from 0 within each attention type. All by default.
        example_inputs: Keyword arguments with which the model can run, if those made from its configuration do not fit.
        allow_partial: Convert a model of which some attention modules keep softmax.

    Returns:
        The model.

    Raises:
        UnsupportedModel: The model cannot be converted; `reasons` lists why.
        ArgumentError: An argument is invalid, or the model has been converted already.
    """
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise ArgumentError(
            f"sparsify() takes a model of transformers, not {type(model).__name__}: load one with from_pretrained; for "
            "torch.nn.Transformer and other modules with nn.MultiheadAttention use entformer.MultiheadAttention.convert(model)."
        )
    initial, learned = _initial_alpha(normalizer, alpha, init)
    if calibration and alpha != "calibrated":
        raise ArgumentError(f'sparsify() got {", ".join(sorted(calibration))}, which only alpha="calibrated" uses.')
    if alpha == "calibrated" and "texts" not in calibration:
        raise ArgumentError('alpha="calibrated" needs texts=[...] to calibrate on; see entformer.hf.calibrate.')
    chosen_kinds = _checked_kinds(kinds)
    if next(sparse_heads(model), None) is not None:
        raise ArgumentError("the model has been converted already; call entformer.hf.densify(model) first.")
    if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        warnings.warn(
            "PEFT saves the modules of its configuration only, so save_pretrained drops the alphas and scales of this model. "
            'Convert the base model first, then call get_peft_model with modules_to_save=["entmax_norm"]; or merge the adapter '
            "with merge_and_unload() first.",
            stacklevel=2,
        )
    clear_gguf(model)
    inputs = made_inputs(model) if example_inputs is None else example_inputs
    coverage = find_attention(model, inputs)
    if reasons := coverage.reasons(allow_partial=allow_partial):
        raise UnsupportedModel(model, reasons)
    wanted = [
        module for module in coverage.modules if module.kind in chosen_kinds and (layers is None or module.layer in set(layers))
    ]
    if not wanted:
        found = sorted({f"{module.kind} {module.layer}" for module in coverage.modules})
        raise ArgumentError(f"kinds={kinds} and layers={layers} select none of the attention modules: {', '.join(found)}.")
    own_configs(model)
    # Its soft-capping is in a model's eager attention; sdpa of older versions of transformers leaves it out.
    with switched(model, "eager") if any(module.capped for module in coverage.modules) else contextlib.nullcontext():
        before = _outputs(model, inputs)
    _attach(coverage.modules, wanted, 1.0, learned)
    switch(model)
    if (difference := _difference(before, _outputs(model, inputs))) > TOLERANCE:
        densify(model)
        reason = f"at alpha = 1 its outputs differ from those of its own attention by {difference:.1e} relative"
        raise UnsupportedModel(model, [reason])
    for _, heads in sparse_heads(model):
        heads.set(alpha=initial)
    write_settings(model, normalizer, alpha, wanted)
    if alpha == "calibrated":
        from entformer.hf.calibration import calibrate

        calibrate(model, **calibration)
    return model


def densify(model: nn.Module) -> nn.Module:
    """Undoes `sparsify` exactly: removes alphas and scales and restores the model's own attention.

    Raises:
        ArgumentError: The model has no alphas.
    """
    if next(sparse_heads(model), None) is None and getattr(getattr(model, "config", None), SETTINGS, None) is None:
        raise ArgumentError("the model has no alphas to remove: it was not converted with entformer.hf.sparsify.")
    for module in model.modules():
        module._modules.pop(HEADS, None)
        module.__dict__.pop(DENSE, None)
        config = vars(module).get("config")
        if config is not None and hasattr(config, SETTINGS):
            delattr(config, SETTINGS)
    restore(model)
    return model


def alphas(model: nn.Module) -> dict[str, Tensor]:
    """Returns the alphas of every attention module, by its qualified name: tensors (heads,) without gradient."""
    return {name: heads()[0].detach().clone() for name, heads in sparse_heads(model)}


def scales(model: nn.Module) -> dict[str, Tensor]:
    """Returns the score scales of every attention module, by its qualified name: tensors (heads,) without gradient."""
    return {name: heads()[1].detach().clone() for name, heads in sparse_heads(model)}


def parameter_groups(
    model: nn.Module, *, lr: float, alpha_lr: float | None = None, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Returns parameter groups for an optimizer: the model's weights, and alphas and scales without weight decay.

    Args:
        model: A converted model.
        lr: Learning rate of the weights.
        alpha_lr: Learning rate of alphas and scales; ten times `lr` by default, at least 1e-3: they are few, of the order of 1,
            and have small gradients.
        weight_decay: Of weights with two or more dimensions; biases and norms have none.
    """
    own = {id(parameter) for _, heads in sparse_heads(model) for parameter in heads.parameters()}
    if not own:
        raise ArgumentError("the model has no alphas; call entformer.hf.sparsify(model) first.")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if id(p) not in own and p.dim() > 1], "lr": lr, "weight_decay": weight_decay},
        {"params": [p for p in trained if id(p) not in own and p.dim() <= 1], "lr": lr, "weight_decay": 0.0},
        {
            "params": [p for p in trained if id(p) in own],
            "lr": max(10 * lr, 1e-3) if alpha_lr is None else alpha_lr,
            "weight_decay": 0.0,
        },
    ]
    return [group for group in groups if group["params"]]


# ---- parts shared with `load` ----------------------------------------------------------------------------------------------


def attach(module: nn.Module, num_heads: int, *, alpha: float, learned: bool) -> None:
    """Adds a `SparseHeads` to an attention module, on its device; on the meta device if `from_pretrained` creates it there."""
    heads = SparseHeads(num_heads, alpha=alpha, learned=learned)
    device = next((parameter.device for parameter in module.parameters()), None)
    module.add_module(HEADS, heads if device is None or heads.log_scale.is_meta else heads.to(device))
    heads.train(module.training)


def _attach(every: Iterable[AttentionModule], wanted: Iterable[AttentionModule], alpha: float, learned: bool) -> None:
    chosen = {module.name for module in wanted}
    for found in every:
        if found.name in chosen:
            attach(found.module, found.num_heads, alpha=alpha, learned=learned)
        else:
            found.module.__dict__[DENSE] = True


def clear_gguf(model: nn.Module) -> None:
    """Removes the quantizer of a model loaded from a GGUF file: its weights are plain tensors, and could not be saved else."""
    quantizer = getattr(model, "hf_quantizer", None)
    method = getattr(getattr(quantizer, "quantization_config", None), "quant_method", None)
    if quantizer is None or getattr(method, "value", method) != "gguf":
        return
    anything: Any = model
    anything.hf_quantizer, anything.is_quantized = None, False
    if hasattr(anything.config, "quantization_config"):
        del anything.config.quantization_config


# ---- checks ----------------------------------------------------------------------------------------------------------------


def _initial_alpha(normalizer: str, alpha: str | float, init: float) -> tuple[float, bool]:
    """Returns the initial alpha, and whether it is learned."""
    if normalizer in ALPHA_OF:
        if alpha not in ("learned", ALPHA_OF[normalizer]):
            raise ArgumentError(
                f"normalizer={normalizer!r} has a fixed alpha of {ALPHA_OF[normalizer]}; remove alpha={alpha!r}."
            )
        return ALPHA_OF[normalizer], False
    if normalizer != "entmax":
        raise ArgumentError(f"normalizer={normalizer!r} is not known; choose one of entmax, {', '.join(ALPHA_OF)}.")
    if isinstance(alpha, str):
        if alpha not in ("learned", "calibrated"):
            raise ArgumentError(f'alpha={alpha!r} is not known; give "learned", "calibrated" or a number from 1 to 2.')
        number, learned = (1.0 if alpha == "calibrated" else init), True
    else:
        number, learned = float(alpha), False
    if not 1.0 <= number <= 2.0:
        raise ArgumentError(f"alpha={number:g} must be between 1 (softmax) and 2 (sparsemax).")
    return number, learned


def _checked_kinds(kinds: str | Collection[str] | None) -> set[str]:
    chosen = set(KINDS if kinds is None else [kinds] if isinstance(kinds, str) else kinds)
    if unknown := sorted(chosen - set(KINDS)):
        raise ArgumentError(f"kinds={unknown} are not known; choose from {', '.join(KINDS)}.")
    return chosen


@torch.no_grad()
def _outputs(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the floating-point outputs, in evaluation mode and with fixed random numbers."""
    training = model.training
    model.eval()
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            found = model(**inputs)
    finally:
        model.train(training)
    items = found.items() if isinstance(found, Mapping) else enumerate(found if isinstance(found, tuple) else (found,))
    return {str(key): value for key, value in items if isinstance(value, Tensor) and value.is_floating_point()}


def _difference(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """Returns the largest relative difference of the first, unpadded example; implementations differ on padding."""
    largest = 0.0
    for key, expected in before.items():
        if expected.dim() and key in after and after[key].shape == expected.shape:
            first, second = expected[0].double(), after[key][0].double()
            slack = 1.0 if expected.dtype in (torch.float32, torch.float64) else 1e-3  # half precision differs by rounding
            largest = max(largest, slack * float((first - second).abs().max() / first.abs().max().clamp_min(1e-12)))
    return largest
