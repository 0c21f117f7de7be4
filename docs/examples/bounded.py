from fl_lightning.parts import ServerOptimizer


class Bounded(ServerOptimizer):
    """Goes the way of another server optimizer, but no further than ``most`` in one step."""

    def __init__(self, inner, most):
        self.inner, self.most = inner, most

    @property
    def held_parts(self):
        return [self.inner]

    def step(self, model, aggregate):
        way = self.inner.step(model, aggregate) - model
        return model + way * (self.most / way.norm()).clamp(max=1)
