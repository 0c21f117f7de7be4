"""Low-rank adapters beside frozen linear layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning.settings import Count, Positive, check


class LoRALinear(nn.Module):
    """``W x + b + (alpha / rank) B A x`` with W and b frozen (LoRA, Hu et al. 2021; eq. (78)). B is 0 at first.

    The parameters have peft's names, ``lora_A``, shape (rank, in_features), and ``lora_B``, (out_features, rank).
    ``weight`` and ``bias`` are those of the linear layer that computes the same, for code that reads them instead of
    calling the layer, as ``nn.TransformerEncoderLayer`` does in eval mode.

    Args:
        layer: The layer; it is frozen.
        rank: Rank of B A.
        alpha: Scale of B A, times the rank.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.scale = alpha / rank
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        self.lora_A = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_B = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    @property
    def weight(self) -> Tensor:
        """``W + (alpha / rank) B A``, shape (out_features, in_features)."""
        return self.layer.weight + self.scale * self.lora_B @ self.lora_A

    @property
    def bias(self) -> Tensor | None:
        """b, shape (out_features,), if there is one."""
        return self.layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output with that of the adapter."""
        adapted: Tensor = self.layer(x) + self.scale * F.linear(F.linear(x, self.lora_A), self.lora_B)
        return adapted


def add_lora(
    module: nn.Module, targets: str | Sequence[str] = "*", rank: Count = 8, alpha: Positive | None = None
) -> nn.Module:
    """Freeze a module, put adapters beside its linear layers, in place, and return it.

    What shall be trained besides the adapters is unfrozen afterwards: ``module.head.requires_grad_(True)``.

    Subclasses of ``nn.Linear`` get no adapters, since they may compute something else, nor does
    ``nn.MultiheadAttention``, which never calls its layers. A warning names those that ``targets`` match.

    Args:
        module: The module.
        targets: Names of linear layers, or shell patterns of names, such as ``"*.query"``.
        rank: Rank of an adapter.
        alpha: An adapter is scaled by ``alpha / rank``; ``None`` does not scale it.

    Raises:
        ValueError: If ``targets`` names no linear layer, or a number is out of its range.
    """
    check("`rank`", rank, Count)
    check("`alpha`", alpha, Positive | None)
    patterns = [targets] if isinstance(targets, str) else targets
    layers = {name: layer for name, layer in module.named_modules() if name and type(layer) is nn.Linear}
    chosen = {name: layer for name, layer in layers.items() if _matches_any(name, patterns)}
    if not chosen:
        names = ", ".join(layers) or "none"
        raise ValueError(f"`targets` must name linear layers of the module, got {targets!r}. There are: {names}.")
    left_out = [
        f"{name} ({type(layer).__name__})"
        for name, layer in module.named_modules()
        if isinstance(layer, (nn.Linear, nn.MultiheadAttention)) and name not in layers
        if name and _matches_any(name, patterns)
    ]
    if left_out:
        rank_zero_warn(
            f"`targets` match layers that get no adapters and are frozen: {', '.join(left_out)}. `add_lora` puts them "
            "beside layers of the class `nn.Linear`: build attention of these, or unfreeze what shall be trained."
        )
    module.requires_grad_(False)
    for name, layer in chosen.items():
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, LoRALinear(layer, rank, rank if alpha is None else alpha))
    return module


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
