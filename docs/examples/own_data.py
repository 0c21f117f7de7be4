import torch
from sklearn.datasets import load_wine
from torch.utils.data import TensorDataset

from fl_lightning import FederatedDataModule
from fl_lightning.data import Source


class WineDataModule(FederatedDataModule):
    """178 wines of three classes with 13 features."""

    def load(self):
        features, labels = load_wine(return_X_y=True)
        x = torch.from_numpy(features).float()
        return Source(TensorDataset((x - x.mean(0)) / x.std(0), torch.from_numpy(labels)), labels)
