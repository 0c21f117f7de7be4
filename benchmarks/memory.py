"""The most memory that fits of large models take, in models, and who holds it.

Run it by ``python benchmarks/memory.py``, or with the names of algorithms. They fit one after the other in one process:
three rounds of two clients by the sequential executor. Two figures are printed for each, both with the module. The
first counts what PyTorch allocates on the CPU; it is the same in each run. The second is by how much the process's
largest size has grown since the start, in this fit and those before it; a fit that held what an earlier one left would
show in it. ``--holders`` lists what is held at the first figure's peak, with the functions that made it.
"""

from __future__ import annotations

import argparse
import logging
import resource
import warnings
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import fl_lightning
from fl_lightning import TensorDataModule

#: Arguments without which an algorithm cannot be made.
ARGUMENTS: dict[str, dict[str, Any]] = {"FedProx": {"mu": 0.1}, "FedPer": {"pattern": "head"}}
ALGORITHMS = ["FedAvg", "FedAdam", "Scaffold", "FedDyn", "Ditto"]
_BYTES = 4

Allocation = tuple[int, list[str]]


class Wide(L.LightningModule):
    """A linear map without bias, and a small head, trained by SGD.

    Args:
        width: Values of a sample; the map has their square.
        momentum: Momentum of SGD.
    """

    def __init__(self, width: int, momentum: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, 1, bias=False)
        self.momentum = momentum

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        predictions: Tensor = self.head(self.body(batch[0]))
        return predictions.square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=self.momentum)


def fit(name: str, width: int, momentum: float = 0.0) -> L.Trainer:
    """Train two clients for three rounds by the named algorithm, and return the trainer."""
    torch.manual_seed(0)
    algorithm = getattr(fl_lightning, name)(clients_per_round=2, executor="sequential", **ARGUMENTS.get(name, {}))
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[algorithm],
    )
    clients = [(torch.randn(4, width), torch.zeros(4)) for _ in range(2)]
    trainer.fit(Wide(width, momentum), datamodule=TensorDataModule(clients, batch_size=2))
    return trainer


def allocations_at_peak(work: Callable[[], Any]) -> list[Allocation]:
    """Return what PyTorch holds on the CPU when it holds the most, largest first: bytes, and the functions on the way.

    Args:
        work: Is run. What was allocated before does not count.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True) as profiler:
        work()
    events: list[tuple[int, int, int, list[str]]] = []
    waiting = [(event, []) for event in profiler.profiler.kineto_results.experimental_event_tree()]  # type: ignore
    while waiting:
        event, path = waiting.pop()
        if str(event.tag).endswith("Allocation"):
            fields = event.extra_fields
            events.append((event.start_time_ns, fields.ptr, fields.alloc_size, path))
        waiting += [(child, [*path, event.name]) for child in event.children]

    held: dict[int, Allocation] = {}
    at_peak: list[Allocation] = []
    total = 0
    largest = 0
    for _, address, size, path in sorted(events, key=lambda event: event[0]):
        if size > 0:
            held[address] = size, path
            total += size
        elif address in held:
            freed, _ = held.pop(address)
            total -= freed
        if total > largest:
            largest = total
            at_peak = list(held.values())
    return sorted(at_peak, key=lambda allocation: -allocation[0])


def models_at_peak(name: str, width: int, momentum: float = 0.0) -> float:
    """Return how many models' values PyTorch holds at most in a fit of the named algorithm."""
    allocations = allocations_at_peak(lambda: fit(name, width, momentum))
    return sum(size for size, _ in allocations) / (_BYTES * width**2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", default=ALGORITHMS)
    parser.add_argument("--width", type=int, default=4000, help="of a linear map: its square is the model's size")
    parser.add_argument("--momentum", type=float, default=0.0, help="of the clients' SGD")
    parser.add_argument("--holders", action="store_true", help="list what is held")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model = _BYTES * options.width**2
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    growth: dict[str, float] = {}
    for name in options.algorithms:
        # The events of a profiled fit take memory themselves, so that these fits come first.
        fit(name, options.width, options.momentum)
        growth[name] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / model
    print("| algorithm | models at the peak | growth of the process so far |")
    print("| --- | --- | --- |")
    for name in options.algorithms:
        allocations = allocations_at_peak(lambda name=name: fit(name, options.width, options.momentum))  # type: ignore
        print(f"| `{name}` | {sum(size for size, _ in allocations) / model:.1f} | {growth[name]:.1f} |")
        for size, path in allocations if options.holders else ():
            if size > model / 8:
                ours = [function for function in path if "fl_lightning" in function]
                print(f"  {size / model:.2f} {path[-1]}, " + ", ".join(reversed(ours[-3:])))


if __name__ == "__main__":
    main()
