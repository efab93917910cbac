"""The Trainer of Hugging Face's transformers: a GPT-2, evaluated and saved every 4 steps."""

import hashlib
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments

if __name__ == "__main__":
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=48, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(64, (32, 32))]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            max_steps=10,
            eval_strategy="steps",
            eval_steps=4,
            save_steps=4,
            logging_steps=1,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows, eval_dataset=rows[:8])
        trainer.remove_callback(PrinterCallback)  # it prints times
        trainer.train()
    print([row["loss"].hex() for row in trainer.state.log_history if "loss" in row])
    parameters = trainer.model.parameters()
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in parameters)).hexdigest())
