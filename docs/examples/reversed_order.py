from fl_lightning.executors import Executor


class ReversedOrder(Executor):
    """Trains one client after the other, the last one first."""

    def run(self, tasks, training, algorithm):
        for task in reversed(tasks):
            yield training.train(task, algorithm.received(task))
