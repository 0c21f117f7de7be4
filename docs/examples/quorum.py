from fl_lightning.parts import Schedule


class Quorum(Schedule):
    """The server moves only in rounds in which at least ``least`` clients reported."""

    def __init__(self, least):
        self.least = least

    def play(self, tasks, server):
        results = list((yield tasks))
        if sum(self.federation.gather(len(results))) >= self.least:  # on all processes
            for result in results:
                server.take(result)
            server.move()
        return server.model
