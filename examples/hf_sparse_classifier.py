"""Fine-tune a BERT classifier that learns how sparse each head is: sparsify, train with Trainer, save, load.

The model is a tiny random BERT, so that the program runs offline in seconds; replace it with `from_pretrained(...)`.
"""

import tempfile

import torch
import transformers as t

import entformer as ef

torch.manual_seed(0)
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
model = t.BertForSequenceClassification(t.BertConfig(vocab_size=100, num_labels=2, max_position_embeddings=64, **sizes))

# Does a sequence contain the token 5?
ids = torch.randint(6, 100, (256, 16))
labels = torch.arange(256) % 2
ids[labels == 1, torch.randint(16, (128,))] = 5
data = [{"input_ids": row.tolist(), "labels": int(label)} for row, label in zip(ids, labels, strict=True)]

ef.hf.sparsify(model, init=1.3)  # an alpha and a score scale per head; init=1, the default, would be softmax
callback = ef.hf.SparsityCallback(density=0.3, measure_every=5)  # logs alphas, and raises them until 70% of the weights are 0

with tempfile.TemporaryDirectory() as folder:
    arguments = t.TrainingArguments(
        folder,
        max_steps=48,
        per_device_train_batch_size=32,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    optimizer = torch.optim.AdamW(ef.hf.parameter_groups(model, lr=5e-3, alpha_lr=5e-2))  # alphas may move faster
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    trainer = t.Trainer(model, arguments, train_dataset=data, callbacks=[callback], optimizers=(optimizer, schedule))
    trainer.train()
    model.save_pretrained(f"{folder}/sparse")  # alphas and scales are among the weights
    again = ef.hf.load(f"{folder}/sparse")

first, last = (entry for entry in (trainer.state.log_history[0], trainer.state.log_history[-2]))
with torch.no_grad():
    same = torch.equal(again(ids[:4]).logits, model.eval()(ids[:4]).logits)
print(f"loss {first['loss']:.2f} -> {last['loss']:.2f}, density {last['density']:.2f}, alphas up to {last['alpha_max']:.2f}")
print(f"the loaded model computes the same: {same}")
