"""Federated fine-tuning of low-rank adapters."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeGuard

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.functional import tensors_of_layers
from fl_lightning.parts.aggregations.adapters import AdapterMean, AdapterStack
from fl_lightning.parts.aggregations.base import Aggregation, Weighting
from fl_lightning.parts.aggregations.holders import HolderMean, Padding
from fl_lightning.parts.aggregations.means import WeightedMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.exchanges.partial import AdapterRanks
from fl_lightning.parts.exchanges.stacks import StackMessages
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.objectives.held import HeldGradients
from fl_lightning.settings import Count

if TYPE_CHECKING:
    from fl_lightning.models.lora import LoRALinear


@dataclass(eq=False, repr=False)
class FedLoRA(AggregationCallback):
    """Adapters of frozen layers are trained and travel, as do other parameters that are not frozen (eq. (78)-(80)).

    Adapters are pairs of parameters ``lora_A`` and ``lora_B``: those of peft, or of
    :func:`~fl_lightning.models.add_lora`. Each round logs ``fed/lora_error``, by how much the server's B A differs from
    the mean of the clients', as Frobenius norm over all pairs; with ``"ffa"`` it is 0, and not logged.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        mode: ``"average"`` takes the means of A and of B, whose product is not the mean of the products. ``"ffa"``
            freezes A as it is at the start, until the fit ends (FFA-LoRA, Sun et al. 2024): B alone is trained and
            travels, without an error. ``"svd"`` splits the mean of the products by a singular value decomposition, cut
            off at the rank (FlexLoRA, Bai et al. 2024). ``"stack"`` adds the mean of the products to the frozen weights
            after each round, in which adapters begin anew, without an error (FLoRA, Wang et al. 2024).
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        weighting: ``"samples"`` weighs a client by its size n_k, ``"uniform"`` gives all clients the same weight.
        ranks: Ranks of clients' adapters, the largest of which the module has: leading rows of A and columns of B.
            Client k has the k-th, from the first one again after the last. All have the module's rank if ``None``.
        padding: Of the means of A and B, where ranks are unequal: ``"zeros"`` takes them over all clients, with 0 for
            what a client does not have (HetLoRA, Cho et al. 2024, without its pruning and weights), ``"counts"`` over
            those that have a rank. A rank that no client of the round has stays as it is.

    Raises:
        ValueError: If an argument is out of its range; when the fit begins, if the module has no adapter, or if
            ``"svd"`` would split products of which one factor is each client's own.

    Example:
        >>> add_lora(module, rank=2)  # freezes all else
        >>> algorithm = FedLoRA("average", clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    mode: Literal["average", "ffa", "svd", "stack"] = "average"
    clients_per_round: int | float | None = None
    _: KW_ONLY
    weighting: Weighting = "samples"
    ranks: Sequence[Count] | None = None
    padding: Padding = "zeros"
    aggregation_settings: ClassVar[Mapping[str, object]] = {"weighting": "samples"}

    def __post_init__(self) -> None:
        #: Factors A that this fit has frozen.
        self._frozen: list[nn.Parameter] = []
        super().__post_init__()

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        merges_products = self.mode in ("svd", "stack")
        if merges_products and self.aggregation is not None:
            raise ValueError(
                f'`mode="{self.mode}"` is an aggregation, which `aggregation` replaces. Give only one of the two.'
            )
        if merges_products and self.padding == "counts":
            raise ValueError(
                f'`padding` is of the means of A and B, which `mode="{self.mode}"` does not take, got "counts". Leave '
                "it out."
            )
        held = None if self.ranks is None else AdapterRanks(self.ranks)
        exchange: list[Exchange] = [] if held is None else [held]
        aggregation: Aggregation = AdapterMean(self.mode == "svd", self.weighting, held, self.padding)
        if self.mode == "ffa":
            # With one A for all the mean of B is exact, so that there is no error to log.
            aggregation = WeightedMean(self.weighting)
            if held is not None:
                aggregation = HolderMean(held, self.weighting, self.padding)
        if self.mode == "stack":
            messages = StackMessages(held)
            aggregation = AdapterStack(messages, self.weighting)
            exchange.append(messages)
        objective = None if held is None else HeldGradients(held)
        return self.compose(objective=objective, exchange=exchange, aggregation=aggregation)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Find the adapters; freeze A for the fit if it is not trained."""
        factors = [factor for name, factor in pl_module.named_parameters() if "lora_A" in name.split(".")]
        if stage == "fit" and not factors:
            raise ValueError(
                f"FedLoRA needs a module with adapters, parameters named `lora_A` and `lora_B`, got "
                f"{type(pl_module).__name__} without any. Make them by `fl_lightning.models.add_lora(module)` or peft."
            )
        if stage == "fit" and self.mode == "stack":
            _check_foldable(pl_module)
        if stage == "fit" and self.mode == "ffa":
            for factor in factors:
                if factor.requires_grad:
                    factor.requires_grad_(False)
                    self._frozen.append(factor)
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add what a round has left, that ended with an error before this could be done.

        Raises:
            ValueError: If clients keep frozen weights that ``mode="stack"`` changes.
        """
        super().on_train_start(trainer, pl_module)
        aggregation = self.algorithm.aggregation
        if isinstance(aggregation, AdapterStack):
            members = self.algorithm.chain.members
            for name, _ in (_weight_of(pl_module, a) for a, _ in aggregation.pairs):
                is_buffer = name in self.algorithm.federation.layout.buffers
                if any(member.keeps(name) for member in members) or (is_buffer and self.buffers == "local"):
                    raise ValueError(
                        f'`mode="stack"` changes the frozen {name!r}, of which clients would keep values of their own. '
                        'Give `buffers="average"`, and `PersonalParameters` of adapters alone.'
                    )
        self._fold(pl_module)

    def on_round_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add the round's products to the frozen weights, with ``mode="stack"``."""
        self._fold(pl_module)

    def _fold(self, module: pl.LightningModule) -> None:
        """Add the stacks of adapters to the frozen weights, and to the server's model where it has them."""
        aggregation = self.algorithm.aggregation
        if not isinstance(aggregation, AdapterStack) or not aggregation.stack:
            return
        run = self.algorithm.run
        changed: dict[str, Tensor] = {}
        for (a, _), (left, right) in zip(aggregation.pairs, aggregation.stack, strict=True):
            adapter = module.get_submodule(a.removesuffix(".lora_A"))
            assert _is_adapter(adapter)
            name, weight = _weight_of(module, a)
            with torch.no_grad():
                weight.add_((adapter.scale * left @ right).to(weight.dtype))
            changed[name] = weight.detach()
        aggregation.stack = []
        run.server.model = _with_tensors(run.federation, run.server.model, changed)
        run.shown = _with_tensors(run.federation, run.shown, changed)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """End the fit; A can be trained again."""
        super().teardown(trainer, pl_module, stage)
        for factor in self._frozen:
            factor.requires_grad_(True)
        self._frozen = []


def _is_adapter(layer: nn.Module) -> "TypeGuard[LoRALinear]":
    """Return whether a layer is an adapter of ``add_lora``."""
    # The package of models needs torchvision, and algorithms do not.
    from fl_lightning.models.lora import LoRALinear

    return isinstance(layer, LoRALinear)


def _weight_of(module: nn.Module, factor: str) -> tuple[str, Tensor]:
    """Return the name of the frozen weight that an adapter is beside, perhaps with others, and the weight.

    Args:
        module: The module.
        factor: The name of the adapter's A.
    """
    path = factor.removesuffix(".lora_A")
    layer = module.get_submodule(path)
    while _is_adapter(layer):
        layer = layer.layer
        path = f"{path}.layer"
    assert isinstance(layer, nn.Linear)
    return f"{path}.weight", layer.weight


def _check_foldable(module: nn.Module) -> None:
    """Raise ``ValueError`` if adapters are of another kind, or their frozen weights are other layers', too."""
    every = list(tensors_of_layers(module))
    for name, _ in module.named_parameters():
        if "lora_A" not in name.split("."):
            continue
        path, _, own = name.rpartition(".")
        adapter = module.get_submodule(path)
        if own != "lora_A" or not _is_adapter(adapter):
            raise ValueError(
                '`mode="stack"` adds to the frozen weights of adapters of `fl_lightning.models.add_lora`, got '
                f"{name!r}. Make them by it, or give another `mode`."
            )
        _, weight = _weight_of(module, name)
        names = [other for other, tensor in every if tensor is weight]
        if len(names) > 1:
            raise ValueError(
                f'`mode="stack"` changes frozen weights, so layers must not share them, but {" and ".join(names)} are '
                "one tensor. Give it no adapter, or another `mode`."
            )


def _with_tensors(federation: Federation, model: Tensor, changed: Mapping[str, Tensor]) -> Tensor:
    """Return a model, shape ``(size,)``, with other values of those of the named tensors that it has."""
    model = model.clone()
    tensors = federation.tensors(model)
    for name, values in changed.items():
        if name in tensors:
            tensors[name].copy_(values)
    return model
