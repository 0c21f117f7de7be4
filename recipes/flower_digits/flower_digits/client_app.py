"""A client: it trains at its site, on its own data."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_lightning.flower import query_client, train_client
from flower_digits import task

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say how many samples the client has."""
    return query_client(message, context, task.data_of(int(context.node_config["client"])))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for a round."""
    data = task.data_of(int(context.node_config["client"]))
    return train_client(message, context, task.module(), data, task.algorithm())
