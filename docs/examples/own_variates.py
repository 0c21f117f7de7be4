import torch

from fl_lightning.parts import ClientStates, Correction, LocalObjective


class OwnVariates(LocalObjective):
    """SCAFFOLD (Karimireddy et al. 2020): c - c_k corrects the gradients of client k."""

    vectors_sent = 2  # the model and a control variate, each way
    starts_from_server = True  # an error with RADFed, whose clients receive other models than the server's
    needs_summed_lr = True  # `result.summed_lr`

    def on_fit_start(self, federation):
        self.states = ClientStates(federation, torch.zeros_like(federation.model[: federation.num_parameters]))

    def correction(self, client):
        return Correction(linear=self.states.mean - self.states[client.task.client])

    def on_client_end(self, result):
        rates = zip(self.federation.lengths, result.summed_lr)
        rates = torch.cat([result.delta.new_full((length,), rate) for length, rate in rates])
        own = self.states[result.task.client]
        renewed = own - self.states.mean - result.delta / rates
        self.states.put(result.task.client, self.of_shared(renewed))
