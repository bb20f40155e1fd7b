"""The Trainer of transformers: a small text classifier with bi-half layers, and their bits in the logs.

Run it with ``python examples/with_transformers.py``; it takes seconds and needs no data and no download.
"""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import equalbits as eb
from equalbits.analysis import trainer_callback

torch.manual_seed(0)
config = BertConfig(
    vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
)
model = BertForSequenceClassification(config)
print(eb.binarize_(model, eb.BiHalf(), where="bert.encoder.*"))

words = torch.randint(64, (64, 16))
data = [{"input_ids": row, "labels": int(row.float().mean() > 31.5)} for row in words]
arguments = TrainingArguments(
    output_dir="logs", max_steps=8, per_device_train_batch_size=8, use_cpu=True, report_to=[], save_strategy="no",
    logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
)  # fmt: skip
trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[trainer_callback(every=4)])
trainer.train()
for entry in trainer.state.log_history:
    print(entry)
print(eb.audit(model))
