"""The server: the script of the simulation, with another executor."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_lightning.flower import FlowerClients
from flower_digits import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train with the clients that are connected."""
    clients = FlowerClients(grid, num_clients=task.NUM_CLIENTS, timeout=300.0)
    module = task.module()
    trainer = task.trainer(int(context.run_config["rounds"]), task.algorithm(executor=clients))
    trainer.fit(module, datamodule=clients.data_module(val=task.held_out(), batch_size=task.BATCH_SIZE))
    accuracy = float(trainer.callback_metrics["val_acc"])
    print(f"Real clients: accuracy {accuracy:.4f}, weights {task.describe(module)}", flush=True)
