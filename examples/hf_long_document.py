"""The attention of a document of 2,000 tokens, without a matrix of 2,000 x 2,000 weights.

Every head's nonzero weights are collected as sparse rows, one layer at a time, and measured: which heads attend to the previous
token, to the first token, to what followed the same token before (induction).
"""

import torch
import transformers as t

import entformer as ef

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
config = t.LlamaConfig(vocab_size=500, max_position_embeddings=2048, num_key_value_heads=2, **sizes)
model = t.LlamaForCausalLM(config).eval()
document = torch.randint(3, 500, (1000,)).repeat(2).tolist()  # its second half repeats the first

ef.hf.sparsify(model, alpha=1.5)
for _, heads in ef.hf.heads.sparse_heads(model):  # a random model attends almost uniformly: make it sharper
    heads.set(scale=40.0)
table = ef.analysis.collect(model, [document], length=2000)
print(f"{len(document)} tokens, {len(table)} heads")
for row in table:
    kept = f"{row.support:6.1f} of up to {len(document)} keys"
    print(f"{row.key:<12} alpha {row.alpha:.2f}  {kept}  previous {row.positional['-1']:.3f}  induction {row.induction:.3f}")
