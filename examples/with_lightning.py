"""Lightning: log flips, entropy and exactness of the bits, and audit the model at the end.

Run it with ``python examples/with_lightning.py``; it takes seconds and needs no data.
"""

from pathlib import Path

import lightning
import torch
from torch import Tensor, nn

import equalbits as eb
from equalbits.analysis import lightning_callback


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        hidden = nn.Sequential(nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64))
        self.model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), hidden, nn.ReLU(), nn.Linear(64, 4))
        print(eb.binarize_(self.model, eb.BiHalf(), input_quantizer=eb.SignActivation()))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(self.model(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))
# TensorBoardLogger, WandbLogger(offline=True) and others receive the same values.
logger = lightning.pytorch.loggers.CSVLogger("logs")
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=logger,
    callbacks=[lightning_callback(every=8)],
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
    log_every_n_steps=8,
)
network = Classifier()
trainer.fit(network, torch.utils.data.DataLoader(data, batch_size=32))
print(Path(logger.experiment.metrics_file_path).read_text())
print(eb.audit(network))
