"""The optimizer. In: a model with `parameter_groups()`. Out: AdamW with one group each for matrices, the rest, and alphas.

Weight decay is decoupled and touches matrices only. Alphas have their own learning rate and never decay: decay would pull
their logits to 0, that is every alpha to 1.5.
"""

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from entformer.errors import DataError
from entformer.models.seq2seq import Seq2Seq
from entformer.training.recipe import TrainingConfig

_SEPARATOR = "/"


def make_optimizer(model: Seq2Seq, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW over every trained parameter of the model; one fused pass per update on CPU and GPU."""
    groups = [
        {
            "params": parameters,
            "name": name,
            "lr_factor": config.alpha_lr_factor if name == "alpha" else 1.0,
            "weight_decay": config.weight_decay if name == "decay" else 0.0,
        }
        for name, parameters in model.parameter_groups().items()
        if parameters
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group its learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_factor"]


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's state as named tensors: parameter/what."""
    return {
        f"{name}{_SEPARATOR}{what}": value if isinstance(value, Tensor) else torch.tensor(value)
        for name, parameter in model.named_parameters()
        for what, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], origin: str
) -> None:
    """Put back what `optimizer_tensors` gave."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, what = key.rpartition(_SEPARATOR)
        if name not in parameters:
            raise DataError(f"{origin}: there is no parameter {name} in this model; the checkpoint belongs to another one.")
        parameter = parameters[name]
        if what != "step" and value.shape != parameter.shape:
            raise DataError(f"{origin}: {key} has shape {tuple(value.shape)}, the parameter {tuple(parameter.shape)}.")
        optimizer.state[parameter][what] = value.to(parameter.device)


def clip(parameters: list[nn.Parameter], limit: float | None) -> Tensor:
    """Scale the gradients to a norm of at most `limit`; the norm before, ()."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if limit is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm
