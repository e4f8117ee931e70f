"""Make a decoder sparse without training, then generate with it.

    python examples/hf_calibrate_decoder.py [MODEL_DIRECTORY TEXT_FILE]

Without arguments a tiny random Llama and random tokens are used, offline. With a directory of `save_pretrained` and a text
file, the real model is calibrated on the beginning of the text.
"""

import sys
from pathlib import Path

import torch
import transformers as t

import entformer as ef

torch.manual_seed(0)
if len(sys.argv) == 3:
    model = t.AutoModelForCausalLM.from_pretrained(sys.argv[1])
    tokenizer = t.AutoTokenizer.from_pretrained(sys.argv[1])
    ids = torch.tensor(tokenizer(Path(sys.argv[2]).read_text(encoding="utf-8"))["input_ids"])
else:
    config = t.LlamaConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = t.LlamaForCausalLM(config)
    ids = torch.randint(1, 100, (768,))
model.eval()
train, held_out = ids[:512], ids[512:768]


def loss() -> float:
    with torch.no_grad():
        return float(model(held_out[None], labels=held_out[None]).loss)


before = loss()
ef.hf.sparsify(model)
for density in (0.5, 0.3, 0.1):
    ef.hf.calibrate(model, [train], density=density, length=256)
    found = ef.hf.density(model, [held_out])
    print(f"density {found:.2f}: loss {loss():.4f}, dense {before:.4f}")

# Sampling from entmax of the logits: no token of probability zero can appear.
processor = ef.hf.EntmaxLogitsProcessor(alpha=1.5)
prompt = held_out[None, :16]
output = model.generate(
    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=True, logits_processor=[processor]
)
print("generated:", output[0, 16:].tolist())
