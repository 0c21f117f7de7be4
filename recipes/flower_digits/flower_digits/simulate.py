"""The same run in simulation: `python -m flower_digits.simulate`."""

from fl_lightning import TensorDataModule
from flower_digits import task


def main(rounds: int = 3) -> None:
    """Train all clients here, one after the other."""
    module = task.module()
    clients = [task.samples_of(client) for client in range(task.NUM_CLIENTS)]
    data = TensorDataModule(clients, val=task.held_out().tensors, batch_size=task.BATCH_SIZE)
    trainer = task.trainer(rounds, task.algorithm(executor="sequential"))
    trainer.fit(module, datamodule=data)
    accuracy = float(trainer.callback_metrics["val_acc"])
    print(f"Simulation:   accuracy {accuracy:.4f}, weights {task.describe(module)}")


if __name__ == "__main__":
    main()
