"""FSDP2: each process stores a part of every matrix, of its gradient and of its moments.

Vectors (alphas, norms, biases: below 1% of the weights) stay whole in every process, in float32. Their gradients are summed in
one buffer, as with `sum`. The norm that clips is that of the whole gradient.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from entformer.checkpoint.weights import gathered, tensors_of
from entformer.models.attention_settings import AttentionModel
from entformer.nn.layers import LAYERS
from entformer.training.engine import Engine, Loss
from entformer.training.precision import Precision
from entformer.training.ranks import Ranks


class FSDPEngine(Engine):
    """FSDP2: matrices are sharded over the processes, vectors are not."""

    sharded, splits = True, False

    def __init__(
        self, model: AttentionModel, loss: Loss, ranks: Ranks, precision: Precision, build: Callable[[], AttentionModel]
    ) -> None:
        mesh = init_device_mesh(ranks.device.type, (ranks.size,))
        whole = {parameter for parameter in model.parameters() if parameter.dim() < 2}
        for parameter in whole:
            parameter.data = parameter.data.to(ranks.device)
        options: dict[str, Any] = {"mesh": mesh, "ignored_params": whole}
        # Autocast rounds matrices of layers to bfloat16 anyway; gathered in bfloat16, they have the same values. Embeddings
        # stay float32, and so do the states between layers.
        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
        policy = half if precision == "bfloat16" else MixedPrecisionPolicy()
        for module in model.modules():
            if isinstance(module, LAYERS):
                fully_shard(module, mp_policy=policy, **options)
        fully_shard(model, **options)
        for name in ("loss", "run_attention"):
            if hasattr(model, name):
                register_fsdp_forward_method(model, name)
        model.run_attention = functools.partial(_resharded, model, model.run_attention)  # type: ignore[method-assign]
        super().__init__(model, loss, ranks)
        self.build, self.mesh = build, mesh

    @property
    def loss_scale(self) -> float:
        return float(self.ranks.size)

    def accumulate(self, last: bool) -> AbstractContextManager[None]:
        module: Any = self.model
        module.set_requires_gradient_sync(last)
        module.set_is_last_backward(last)
        return nullcontext()

    def reduce(self, sums: Tensor) -> None:
        own = [parameter.grad for parameter in self.parameters if not isinstance(parameter, DTensor)]
        self.ranks.sum_tensors([gradient for gradient in own if gradient is not None], 1.0 / self.ranks.size)
        dist.all_reduce(sums)

    def _gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """Returns this process's part of the gradients of matrices, and the gradients of vectors."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        shards = [gradient.to_local() for gradient in gradients if isinstance(gradient, DTensor)]
        return shards, [gradient for gradient in gradients if not isinstance(gradient, DTensor)]

    def grad_norm(self) -> Tensor:
        shards, vectors = self._gradients()
        total = nn.utils.get_total_norm(shards).square()
        dist.all_reduce(total)
        return (total + nn.utils.get_total_norm(vectors).square()).sqrt()

    def clip(self, limit: float, norm: Tensor) -> None:
        factor = (limit / (norm + 1e-6)).clamp_max(1.0)
        for gradients in self._gradients():
            for gradient in gradients:
                gradient.mul_(factor)

    @contextlib.contextmanager
    def whole_model(self) -> Iterator[AttentionModel]:
        with torch.random.fork_rng(devices=[]):
            model = self.build()
        model.to(self.ranks.device).train(self.model.training)
        own = self.model.state_dict()
        with torch.no_grad():
            for name, tensor in tensors_of(model).items():
                tensor.copy_(gathered(own[name]))
        yield model

    def close(self) -> None:
        # Caches of torch hold the mesh for good, and with it the group and gloo's threads, which can abort a finished process.
        getattr(self.mesh, "_pg_registry", {}).clear()


def _resharded(model: Any, run_attention: Callable[[Any], None], batch: Any) -> None:
    """Runs attention and frees the gathered weights of the root.

    FSDP does so in backward, which does not come here. The next forward would use them, although the optimizer steps before.
    """
    run_attention(batch)
    model.reshard()
