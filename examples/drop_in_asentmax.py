"""ASEntmax in a plain PyTorch model: replace the attention of each layer, keep everything else."""

import torch
from torch import nn

import entformer as ef

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(d_model=64, nhead=8, dim_feedforward=128, batch_first=True, norm_first=True)
model = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
model = ef.MultiheadAttention.convert(model, normalizer="asentmax", positions="nape")  # weights of a trained model are kept

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(5):  # it trains as before, and the scaling with it
    x = torch.randn(4, 32, 64)
    loss = (model(x, mask=nn.Transformer.generate_square_subsequent_mask(32), is_causal=True) - x.roll(1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():  # and it takes any length
    long = model.eval()(torch.randn(1, 1024, 64))
print(f"loss {loss.item():.3f}, output at length 1024: {tuple(long.shape)}")
