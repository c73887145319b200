"""Training with the Trainer of transformers. ``record``: with profilerkit's callback."""

import sys

import torch
from stalled import BATCH, Samples, network
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network()

    def forward(self, inputs, labels):
        logits = self.network(inputs)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def collate(samples):
    return {
        "inputs": torch.stack([inputs for inputs, _ in samples]),
        "labels": torch.tensor([label for _, label in samples]),
    }


callbacks = []
if "record" in sys.argv:
    import profilerkit
    from profilerkit.integrations.huggingface import ProfilerkitCallback

    callbacks.append(ProfilerkitCallback(profilerkit.profile(sys.argv[2])))

arguments = TrainingArguments(
    output_dir="checkpoints",
    num_train_epochs=1,
    per_device_train_batch_size=BATCH,
    gradient_accumulation_steps=2,
    eval_strategy="steps",
    eval_steps=20,
    save_steps=25,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    remove_unused_columns=False,
)
few = torch.utils.data.Subset(Samples(), range(2 * BATCH))
trainer = Trainer(
    Model(), arguments, data_collator=collate, train_dataset=Samples(), eval_dataset=few, callbacks=callbacks
)
trainer.train()
if callbacks:
    assert callbacks[0].prof.report is not None
