from fl_lightning.parts import Aggregation


class NormalizedMean(Aggregation):
    """FedNova (Wang et al. 2020) with plain SGD: an update counts by its direction, not by its number of steps."""

    def __init__(self):
        self.results = []

    def update(self, result):
        self.results.append(result)

    def merge(self, model):
        results, self.results = [result for result in self.results if result.num_steps], []
        if not results:
            return None
        samples = sum(result.num_samples for result in results)
        steps = sum(result.num_samples * result.num_steps for result in results) / samples
        direction = sum(result.num_samples / samples * result.delta.double() / result.num_steps for result in results)
        return model + steps * direction
