"""The server: it fits each method, and writes the server's model, the counts, and all messages."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.common.serde import message_to_proto
from flwr.serverapp import Grid, ServerApp
from lightning.pytorch.callbacks import ModelCheckpoint

from bits import task
from fl_lightning.flower import FlowerClients

app = ServerApp()


class Counting:
    """Flower's grid, which counts the bytes of the arrays that pass it, and writes all messages.

    Args:
        grid: Flower's.
        path: Where to write.
    """

    def __init__(self, grid: Grid, path: Path) -> None:
        self.grid = grid
        self.path = path
        self.down = self.up = 0

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        replies = list(self.grid.send_and_receive(messages, timeout=timeout))
        self.down += sum(map(_bytes, messages))
        self.up += sum(map(_bytes, replies))
        with self.path.open("ab") as file:
            for message in (*messages, *replies):
                file.write(message_to_proto(message).SerializeToString())
        return replies


def _bytes(message: Message) -> int:
    if message.has_error():
        return 0
    records = message.content.array_records.values()
    return sum(array.numpy().nbytes for record in records for array in record.values())


@app.main()
def main(grid: Grid, context: Context) -> None:
    config: dict[str, Any] = dict(context.run_config)
    folder = Path(config["folder"])
    (folder / "server").write_text(str(os.getpid()))
    try:
        fit_all(grid, config, folder)
    except Exception:
        (folder / "error").write_text(traceback.format_exc())
        raise
    (folder / "done").write_text("")


def fit_all(grid: Grid, config: dict[str, Any], folder: Path) -> None:
    for name in config["methods"].split(","):
        counting = Counting(grid, folder / f"{name}.messages")
        clients = FlowerClients(counting, num_clients=len(task.SIZES), timeout=float(config["timeout"]))
        algorithm = task.METHODS[name](executor=clients)
        (folder / "method").write_text(name)
        checkpoint = ModelCheckpoint(folder / name, save_last=True)
        last = folder / name / "last.ckpt"
        trainer = task.trainer(config["rounds"], algorithm, callbacks=[checkpoint], enable_checkpointing=True)
        data = clients.data_module(batch_size=8)
        trainer.fit(task.module(), datamodule=data, ckpt_path=last if last.is_file() else None)
        plan = algorithm.algorithm
        outcome = {
            "model": plan.server.model,
            "traffic": vars(plan.traffic),
            "bytes": (counting.down, counting.up),
            "dropped": plan.report.dropped,
            "kept": clients.state_dict()["run"],
        }
        torch.save(outcome, folder / f"{name}.pt")
