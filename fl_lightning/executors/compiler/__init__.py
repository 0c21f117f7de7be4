"""A training step becomes a graph that computes it for many clients.

Read in the order of a step's way:

* ``notes``: what it logs and gives to metric objects becomes nodes of its graph, ``kept`` and ``told``: and so does
  what it keeps in attributes and tells others, ``conditions``: and those under which it gives up, ``host_draws``: and
  what it draws by numpy or Python,
* ``capture``: PyTorch's Dynamo makes a graph of it, ``dependence``: on what of Python that graph depends,
  ``causes``: why it could not be made,
* ``selections``: what it selects by masks becomes as many rows as there are,
* ``reader``: the notes leave the graph, and the tensors that they name become its outputs,
* ``graph``: the graph is mapped over clients and made one flat list of operations, forward and backward,
  ``unmapped``: with other functions where ``vmap`` computes something else, ``simplification``: and fewer calls,
* ``check``: one step of it is compared with the module as it is, ``traces``: and so is what that leaves behind,
* ``filled``: short batches are filled up where samples do not mix (``rows``), ``sizes``: whose number the graph has in
  places, and ``samples``: whose means are weighted.

One step on this way. As the user writes it::

    def training_step(self, batch, batch_idx):
        x, y = batch
        prediction = F.linear(x, self.weight)
        loss = F.mse_loss(prediction, y)
        self.log("loss", loss)
        return loss

As Dynamo captures it, for one client::

    prediction = linear(x, weight)
    loss = mse_loss(prediction, y)
    logged("loss", loss, {})
    return loss

As the reader leaves it, with what is logged as an output; and, where batches are filled up, with weighted means::

    prediction = linear(x, weight)                                   prediction = linear(x, weight)
    loss = mse_loss(prediction, y)                                   loss = _weighted_loss("mse_loss", weights, ...)
    return loss, kept(loss)                                          return loss, kept(loss)

As a flat list for K clients, whose last operation steps the weights, shape ``(K, out, in)``, by the product that is
their gradient::

    prediction = bmm(x, weight.transpose(1, 2))
    error = sub(prediction, y)
    losses = mean(pow(error, 2), [1, 2])
    slope = mul(error, 2 / (B * out))
    weight.baddbmm_(slope.transpose(1, 2), x, beta=1, alpha=-lr)
    return losses, losses.clone()
"""
