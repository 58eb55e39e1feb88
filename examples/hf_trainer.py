"""Hugging Face Trainer on two unequal workers. Start it with: torchrun --nproc-per-node 2 hf_trainer.py"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import equipoise as eq
from equipoise.integrations.huggingface import EquipoiseCallback

# A language of ten words: each sentence counts from one of them.
sentences = [torch.arange(first, first + 8) % 10 for first in range(10)] * 8
data = [{"input_ids": sentence, "labels": sentence} for sentence in sentences]

config = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=10, max_position_embeddings=8, **config))
arguments = TrainingArguments(
    "runs/trainer", max_steps=24, learning_rate=0.03, save_steps=12, use_cpu=True, report_to=[], disable_tqdm=True
)
# One worker takes 12 sentences in a step, the other one 4, and every sixth step they average their models.
together = EquipoiseCallback(sync=eq.sync.PeriodicAverage(), period=6, batch=[12, 4])
trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:10], callbacks=[together])
trainer.train()  # after a stop: trainer.train(resume_from_checkpoint=True)

loss = trainer.evaluate()["eval_loss"]
trainer.save_model("runs/trainer/final")  # the mean of both models, which both workers hold now
if trainer.is_world_process_zero():
    print(f"loss of the mean model {loss:.3f} after {together.result['rounds']} rounds")
