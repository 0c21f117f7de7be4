"""A client; what it keeps is in the test's folder, which the run's configuration names."""

from __future__ import annotations

import os
import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from bits import task
from fl_lightning.files import atomic_file
from fl_lightning.flower import query_client, train_client

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    return query_client(message, context, task.data_of(int(context.node_config["client"])))


@app.train()
def train(message: Message, context: Context) -> Message:
    client = int(context.node_config["client"])
    folder = Path(str(context.run_config["folder"]))
    _fall_into_trap(folder / f"trap-{client}", int(message.content["fl-lightning.values"]["round"]))
    algorithm = task.METHODS[(folder / "method").read_text()]()
    data = task.data_of(client)
    return train_client(
        message,
        context,
        task.module(),
        data,
        algorithm,
        state_dir=folder / "kept",
        secret_noise=False,
        accelerator="cpu",
    )


def _fall_into_trap(trap: Path, round_index: int) -> None:
    """Wait, if a test has laid a trap for this client and round: a round and seconds; leave the process's number."""
    if not trap.is_file():
        return
    number, seconds = trap.read_text().split()
    if int(number) != round_index:
        return
    trap.unlink()
    with atomic_file(trap.with_name(f"caught-{trap.name[-1]}-{number}")) as path:
        path.write_text(str(os.getpid()))
    time.sleep(float(seconds))
