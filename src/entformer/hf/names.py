"""The names under which this package appears in Hugging Face's registries, modules and configurations."""

IMPLEMENTATION = "entformer"
"""Of the attention function and the mask function: `config._attn_implementation`. Both must be equal, or masks are dropped."""

HEADS = "entmax_norm"
"""Of the submodule with alphas and scales. Hugging Face's Trainer applies no weight decay to names that end in `_norm`."""

SETTINGS = "entformer"
"""Of the settings in a saved config.json."""

DENSE = "_entformer_dense"
"""Marks an attention module that was deliberately left with softmax (`kinds`, `layers`)."""
