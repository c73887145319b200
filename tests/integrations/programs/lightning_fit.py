"""A fit with Lightning. ``record``: with profilerkit's callback. ``profile``: with its profiler, and two fits."""

import sys
from importlib import import_module

import torch
from stalled import loader, network

lightning = import_module("pytorch_lightning" if "old-name" in sys.argv else "lightning.pytorch")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()

    def training_step(self, batch, _index):
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch, _index):
        self.network(batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


callbacks, profiler = [], None
if "record" in sys.argv:
    import profilerkit
    from profilerkit.integrations.lightning import ProfilerkitCallback

    callbacks.append(ProfilerkitCallback(profilerkit.profile(sys.argv[2])))
if "profile" in sys.argv:
    from profilerkit.integrations.lightning import ProfilerkitProfiler

    profiler = ProfilerkitProfiler(sys.argv[2])

trainer = lightning.Trainer(
    max_epochs=1,
    accumulate_grad_batches=2,
    accelerator="cpu",
    callbacks=callbacks,
    profiler=profiler,
    limit_val_batches=3,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), loader(), loader())
if callbacks:
    assert callbacks[0].prof.report is not None
if profiler:
    assert profiler.prof.report is not None
    trainer.fit_loop.max_epochs = 2
    trainer.fit(Model(), loader(), loader())
    assert profiler.prof.directory.name == f"{sys.argv[2]}-2"
