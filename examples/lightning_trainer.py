"""A LightningModule and a DataModule as they are, trained by any choice of Equipoise: only `strategy=` differs.

python examples/lightning_trainer.py
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.integrations.lightning import EquipoiseStrategy

torch.manual_seed(0)
inputs = torch.randn(1024, 10)
data = TensorDataset(inputs, (inputs @ torch.randn(10, 3)).argmax(1))


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(data, batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(data, batch_size=256)


if __name__ == "__main__":
    strategy = EquipoiseStrategy(
        sync=eq.sync.DiLoCo(),
        period=4,
        wire=eq.wire.Int8(),
        batch=[48, 16],  # a batch size per worker
        start_method="fork",  # on CPUs: starts at once
    )
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=5, logger=False)
    trainer.fit(Classifier(), datamodule=Data())  # ckpt_path="...ckpt" resumes to the same bits
    print(f"accuracy of the mean model {trainer.callback_metrics['accuracy']:.2f}")
