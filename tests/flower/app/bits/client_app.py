"""A client; what it keeps is in the test's folder, which the run's configuration names."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from bits import task
from fl_lightning.flower import query_client, train_client

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    return query_client(message, context, task.data_of(int(context.node_config["client"])))


@app.train()
def train(message: Message, context: Context) -> Message:
    client = int(context.node_config["client"])
    folder = Path(str(context.run_config["folder"]))
    # A test that kills a SuperNode waits for this file, which the client's next program does not find again.
    trap = folder / f"trap-{client}"
    if trap.is_file() and trap.read_text() == str(message.content["fl-lightning.values"]["round"]):
        trap.rename(folder / f"caught-{client}")
        _wait_for_the_end()
    algorithm = task.METHODS[(folder / "method").read_text()]()
    data = task.data_of(client)
    return train_client(message, context, task.module(), data, algorithm, state_dir=folder / "kept", accelerator="cpu")


def _wait_for_the_end() -> None:
    import time

    time.sleep(600)
