"""AdamW with one parameter group each for matrices, alphas and the rest.

Weight decay applies to matrices only. Alphas have their own learning rate and do not decay: decay would pull their logits to
0, that is every alpha to 1.5.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from entformer.checkpoint.weights import STATE_SEPARATOR, is_sharded, sharded_as
from entformer.errors import DataError
from entformer.models.attention_settings import AttentionModel
from entformer.training.recipe import TrainingConfig


def make_optimizer(model: AttentionModel, config: TrainingConfig) -> torch.optim.AdamW:
    """Returns a fused AdamW over all parameters of the model. Sharded parameters have groups of their own."""
    groups = [
        {
            "params": parameters,
            "name": name,
            "lr_factor": config.alpha_lr_factor if name == "alpha" else 1.0,
            "weight_decay": config.weight_decay if name == "decay" else 0.0,
        }
        for name, own in model.parameter_groups().items()
        for sharded in (False, True)
        if (parameters := [parameter for parameter in own if is_sharded(parameter) == sharded])
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def set_rate(optimizer: torch.optim.Optimizer, rate: float, *, alphas: bool = True) -> None:
    """Sets the learning rate of every group; without `alphas`, that of the alphas is 0."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_factor"] if alphas or group["name"] != "alpha" else 0.0


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Returns the optimizer's state as tensors named parameter/entry."""
    return {
        f"{name}{STATE_SEPARATOR}{entry}": value if isinstance(value, Tensor) else torch.tensor(value)
        for name, parameter in model.named_parameters()
        for entry, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], origin: str
) -> None:
    """Loads the tensors of `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, entry = key.rpartition(STATE_SEPARATOR)
        if name not in parameters:
            raise DataError(f"{origin}: there is no parameter {name} in this model; the checkpoint belongs to another one.")
        parameter = parameters[name]
        if entry != "step" and value.shape != parameter.shape:
            raise DataError(f"{origin}: {key} has shape {tuple(value.shape)}, the parameter {tuple(parameter.shape)}.")
        optimizer.state[parameter][entry] = value.to(parameter.device) if entry == "step" else sharded_as(parameter, value)
