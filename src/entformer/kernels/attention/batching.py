"""torch.func.vmap over the operators of attention: the mapped dimension becomes part of the batch."""

from typing import Any

from torch import Tensor

from entformer.errors import ImplUnavailable


def batched(operator: Any) -> Any:
    """The vmap rule of `operator`: tensors (N, B, ...) -> (N * B, ...), N seeds, and back.

    The boundaries of packed sequences are the same in every call. alpha (H,) becomes (N * B, H). A bias that is broadcast over
    the batch stays so where its gradient is not needed, which each of the N calls has to itself.
    """
    names = [argument.name for argument in operator._schema.arguments]

    def rule(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        given = dict(zip(names, inputs, strict=False))
        dims = dict(zip(names, in_dims, strict=False))
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            if dims.get(name) is not None:
                raise ImplUnavailable(f"torch.func.vmap cannot map over {name}: all calls must have the same sequences.")
        query = given["query"]
        batch = query.shape[0] if dims["query"] is None else query.movedim(dims["query"], 0).shape[1]
        folded, bias_was_shared, alpha_was_shared = [], False, False
        for name, value in given.items():
            shared = dims[name] is None
            if isinstance(value, Tensor) and name not in ("cu_seqlens_q", "cu_seqlens_k"):
                if name == "bias":
                    wide = value if shared else value.movedim(dims[name], 0)[0]
                    if shared and wide.shape[0] == 1 and not given.get("needs_bias_grad", False):
                        folded.append(value)
                        continue
                    bias_was_shared = wide.shape[0] == 1 != batch
                value = value.expand(info.batch_size, *value.shape) if shared else value.movedim(dims[name], 0)
                if name == "bias":
                    value = value.expand(-1, batch, *value.shape[2:])
                if name == "alpha" and value.dim() == 2:
                    alpha_was_shared = True
                    value = value[:, None].expand(-1, batch, -1)
                value = value.reshape(-1) if name == "dropout_seed" else value.flatten(0, 1)
            folded.append(value)
        outputs = operator(*folded)
        empty = [output.dim() == 1 for output in outputs]  # an output that was not requested has shape (0,)
        mapped = [o if e else o.unflatten(0, (info.batch_size, -1)) for o, e in zip(outputs, empty, strict=True)]
        if bias_was_shared and len(mapped) == 7 and not empty[4]:
            mapped[4] = mapped[4].sum(1, keepdim=True)
        if alpha_was_shared and len(mapped) == 7 and not empty[3]:
            mapped[3] = mapped[3].sum(1)
        return tuple(mapped), tuple(None if e else 0 for e in empty)

    return rule
