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
    def factors(self) -> tuple[nn.Parameter, nn.Parameter]:
        """A and B."""
        return self.lora_A, self.lora_B

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
        output: Tensor = self.layer(x)
        of_adapter = F.linear(F.linear(x, self.lora_A), self.lora_B)
        return output + self.scale * of_adapter


def add_lora(
    module: nn.Module, targets: str | Sequence[str] = "*", rank: Count = 8, alpha: Positive | None = None
) -> nn.Module:
    """Freeze a module, add adapters to its linear layers, in place, and return it.

    If more than the adapters shall be trained, unfreeze it afterwards: ``module.head.requires_grad_(True)``. Adapters
    that are there stay trained, so that a second call puts others beside them: on ``"*.query.layer"``, the frozen
    layers of ``"*.query"``.

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
    if alpha is None:
        alpha = rank
    patterns = [targets] if isinstance(targets, str) else targets
    names = []
    # Each once, also one that has several names.
    chosen: dict[int, nn.Linear] = {}
    left_out: dict[int, str] = {}
    for name, layer in module.named_modules(remove_duplicate=False):
        # The module itself has no name.
        if not name:
            continue
        is_linear = type(layer) is nn.Linear
        if is_linear:
            names.append(name)
        if not any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        if is_linear:
            chosen[id(layer)] = layer
        elif isinstance(layer, (nn.Linear, nn.MultiheadAttention)):
            left_out[id(layer)] = f"{name} ({type(layer).__name__})"
    if not chosen:
        there_are = ", ".join(names) or "none"
        raise ValueError(f"`targets` must name linear layers of the module, got {targets!r}. There are: {there_are}.")
    if left_out:
        rank_zero_warn(
            f"`targets` match layers that get no adapters and are frozen: {', '.join(left_out.values())}. `add_lora` "
            "adds them to layers of the class `nn.Linear`: build attention of these, or unfreeze what must be trained."
        )
    trained: list[nn.Parameter] = []
    for part in module.modules():
        if isinstance(part, LoRALinear):
            trained += [factor for factor in part.factors if factor.requires_grad]
    module.requires_grad_(False)
    for factor in trained:
        factor.requires_grad_(True)
    holders = list(module.modules())
    for linear in chosen.values():
        adapted = LoRALinear(linear, rank, alpha)
        for holder in holders:
            for attribute, held in holder._modules.items():
                if held is linear:
                    setattr(holder, attribute, adapted)
    return module
