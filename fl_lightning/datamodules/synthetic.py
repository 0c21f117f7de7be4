"""Synthetic clients whose models and inputs differ by a chosen amount."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import TensorDataset

from fl_lightning.data import FederatedDataModule, SampleSplit, Source, Split, WithinClientSplit
from fl_lightning.settings import Count, Natural, NotNegative, check_arguments


def _draw(
    rng: np.random.Generator,
    sizes: np.ndarray,
    num_features: int,
    num_classes: int,
    *,
    model_std: float,
    input_std: float,
    same_model: bool,
    same_inputs: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return samples of clients, each of which labels its inputs by another linear model, client after client.

    Client i draws u_i ~ N(0, model_std) and a model W_i, b_i with entries ~ N(u_i, 1); and B_i ~ N(0, input_std) and a
    centre v_i with entries ~ N(B_i, 1). Its inputs are x ~ N(v_i, diag(j^-1.2)), and y = argmax(x W_i + b_i).

    u_i is the same for all classes, so that it changes no y: however small ``model_std``, the models differ by the
    unit variance of their entries.

    Args:
        rng: Generator of all draws.
        sizes: Samples of each client, shape (clients,).
        num_features: Length of x.
        num_classes: Values of y.
        model_std: Standard deviation of u_i.
        input_std: Standard deviation of B_i.
        same_model: Whether all clients have one model, with entries ~ N(0, 1).
        same_inputs: Whether all centres are 0.

    Returns:
        Inputs, float32, shape (N, num_features), and classes, int64, shape (N,).
    """

    def draw_model(mean: float) -> tuple[np.ndarray, np.ndarray]:
        weights = rng.normal(mean, 1.0, (num_features, num_classes))
        bias = rng.normal(mean, 1.0, num_classes)
        return weights, bias

    model_means = rng.normal(0.0, model_std, len(sizes))
    input_means = rng.normal(0.0, input_std, len(sizes))
    scales = np.arange(1.0, num_features + 1) ** -0.6
    inputs = []
    labels = []
    shared = draw_model(0.0)
    for size, model_mean, input_mean in zip(sizes, model_means, input_means, strict=True):
        weights, bias = shared if same_model else draw_model(model_mean)
        centre = 0.0 if same_inputs else rng.normal(input_mean, 1.0, num_features)
        x = centre + scales * rng.standard_normal((size, num_features))
        inputs.append(x.astype(np.float32))
        labels.append((x @ weights + bias).argmax(axis=1))
    return np.concatenate(inputs), np.concatenate(labels).astype(np.int64)


class _SyntheticDataModule(FederatedDataModule):
    """Generates its clients."""

    generated_clients: int
    # `num_clients` counts the training clients, after set-up
    stored_as: ClassVar[Mapping[str, str]] = {"num_clients": "generated_clients"}
    # the facts tell how many there are
    _hidden = ("num_clients",)

    def _make(self, num_clients: int) -> None:
        check_arguments(self, {**vars(self), "num_clients": num_clients})
        self.generated_clients = num_clients

    def _facts(self) -> list[str]:
        return super()._facts() or [f"{self.generated_clients} clients"]


class FedDynSyntheticDataModule(_SyntheticDataModule):
    """The synthetic data of FedDyn (Acar et al. 2021): 30 features, 5 classes, about 200 samples a client.

    All samples train; the test set is a copy of all of them, as in the original code. If a ``split`` is given,
    there is no copy. The gammas are standard deviations, as in that code; the paper calls them variances, which is the
    same for 0 and 1.

    Args:
        gamma1: Spread of the means of the clients' models, which changes no label; see ``same_model``.
        gamma2: Spread of the clients' inputs.
        gamma3: Spread of the clients' sizes: standard deviation of their logarithm; 0 gives each 200 samples.
        num_clients: Number of clients.
        same_model: Whether one model labels all clients' inputs; ``gamma1`` then has no effect.
        same_inputs: Whether all clients' inputs have the same distribution; ``gamma2`` then has no effect.
        seed: Seed of the data.
        split: The clients or samples that train, validate and test.
        **options: Further arguments of :class:`~fl_lightning.data.FederatedDataModule`.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> data = FedDynSyntheticDataModule(num_clients=10, seed=1)
        >>> data.setup()
        >>> data.num_clients, data.client_sizes.sum().item()
        (10, 2000)
    """

    def __init__(
        self,
        gamma1: NotNegative = 1.0,
        gamma2: NotNegative = 1.0,
        gamma3: NotNegative = 0.0,
        *,
        num_clients: Count = 20,
        same_model: bool = False,
        same_inputs: bool = False,
        seed: Natural = 0,
        split: Split | None = None,
        **options: Any,
    ) -> None:
        self.test_on_training = split is None
        if split is None:
            split = SampleSplit(val=0.0, test="official")
        super().__init__(split=split, **options)
        self.gamma1 = gamma1
        self.gamma2 = gamma2
        self.gamma3 = gamma3
        self.same_model = same_model
        self.same_inputs = same_inputs
        self.seed = seed
        self._make(num_clients)

    def load(self) -> Source:
        """Generate the samples: float32, shape (N, 30), and classes 0 to 4."""
        rng = np.random.default_rng(self.seed)
        drawn_sizes = rng.lognormal(np.log(200 + 0.001), self.gamma3, self.generated_clients)
        sizes = np.maximum(drawn_sizes.astype(np.int64), 1)
        x, labels = _draw(
            rng,
            sizes,
            num_features=30,
            num_classes=5,
            model_std=self.gamma1,
            input_std=self.gamma2,
            same_model=self.same_model,
            same_inputs=self.same_inputs,
        )
        clients = np.repeat(np.arange(len(sizes)), sizes)
        test = None
        if self.test_on_training:
            test = np.arange(len(x), 2 * len(x))
            x = np.concatenate([x, x])
            labels = np.concatenate([labels, labels])
            clients = np.concatenate([clients, clients])
        dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(labels))
        return Source(dataset, labels, test, clients=clients, tests_clients=False)


class FedProxSyntheticDataModule(_SyntheticDataModule):
    """synthetic(alpha, beta) of FedProx (Li et al. 2020): 60 features, 10 classes, 30 clients of at least 50 samples.

    A size is 50 plus a lognormal number, truncated, whose logarithm has mean 4 and standard deviation 2. A tenth of
    each client's samples is its test set. The paper's variants are iid, (0, 0), (0.5, 0.5) and (1, 1).

    Args:
        alpha: Spread of the means of the clients' models, a standard deviation, which changes no label; see ``iid``.
        beta: Spread of the clients' inputs, a standard deviation.
        iid: Whether all clients have the same model and distribution of inputs; alpha and beta then have no effect.
        num_clients: Number of clients.
        seed: Seed of the data.
        split: The clients or samples that train, validate and test; ``WithinClientSplit(val=0.0, test=0.1)`` if
            ``None``.
        **options: Further arguments of :class:`~fl_lightning.data.FederatedDataModule`.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> data = FedProxSyntheticDataModule(alpha=0.5, beta=0.5, num_clients=10)
        >>> data.setup()
        >>> data.num_clients, data.source_inputs().shape[1]
        (10, 60)
    """

    def __init__(
        self,
        alpha: NotNegative = 1.0,
        beta: NotNegative = 1.0,
        *,
        iid: bool = False,
        num_clients: Count = 30,
        seed: Natural = 0,
        split: Split | None = None,
        **options: Any,
    ) -> None:
        if split is None:
            split = WithinClientSplit(val=0.0, test=0.1)
        super().__init__(split=split, **options)
        self.alpha = alpha
        self.beta = beta
        self.iid = iid
        self.seed = seed
        self._make(num_clients)

    def load(self) -> Source:
        """Generate the samples: float32, shape (N, 60), and classes 0 to 9."""
        rng = np.random.default_rng(self.seed)
        drawn_sizes = rng.lognormal(4.0, 2.0, self.generated_clients)
        sizes = drawn_sizes.astype(np.int64) + 50
        x, labels = _draw(
            rng,
            sizes,
            num_features=60,
            num_classes=10,
            model_std=self.alpha,
            input_std=self.beta,
            same_model=self.iid,
            same_inputs=self.iid,
        )
        clients = np.repeat(np.arange(len(sizes)), sizes)
        dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(labels))
        return Source(dataset, labels, clients=clients)
