from fl_lightning.parts import Schedule


class Quorum(Schedule):
    """The server moves only in rounds in which at least ``least`` clients reported."""

    def __init__(self, least):
        self.least, self.results = least, []

    def start(self, slot, server):
        return server.model

    def receive(self, result, server):
        self.results.append(result)

    def publish(self, server, failed):
        results, self.results = self.results, []
        if sum(self.federation.gather(len(results))) >= self.least:
            for result in results:
                server.take(result)
            server.move()
        return server.model

    def on_round_abort(self):
        self.results = []
