"""Rounds of a workload in FedJAX; ``peers.py`` starts it in FedJAX's environment, which has no torch.

    python fedjax_rounds.py FOLDER

The folder holds the workload as :mod:`peers` writes it. For each line of the standard input, which names the clients of
a round, it trains them and prints the round's seconds of processor time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

# FedJAX 0.0.17 calls it by its former name.
jax.tree_map = jax.tree_util.tree_map


def make_apply(layers: list[dict[str, Any]]) -> Callable[..., Any]:
    """Return the network as a function of its weights, inputs and a key for dropout."""

    def apply(params: list[Any], x: Any, rng: Any) -> Any:
        weights = iter(params)
        for layer in layers:
            match layer["kind"]:
                case "Linear":
                    x = x @ next(weights).T + next(weights)
                case "Conv2d":
                    dimensions = ("NCHW", "OIHW", "NCHW")
                    x = jax.lax.conv_general_dilated(x, next(weights), (1, 1), "VALID", dimension_numbers=dimensions)
                    x = x + next(weights)[:, None, None]
                case "LayerNorm":
                    mean = x.mean(-1, keepdims=True)
                    variance = x.var(-1, keepdims=True)
                    x = (x - mean) / jnp.sqrt(variance + 1e-5) * next(weights) + next(weights)
                case "ReLU":
                    x = jax.nn.relu(x)
                case "GELU":
                    x = jax.nn.gelu(x, approximate=False)
                case "MaxPool2d":
                    window = (1, 1, 2, 2)
                    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
                case "Dropout":
                    rng, own = jax.random.split(rng)
                    kept = jax.random.bernoulli(own, 1 - layer["p"], x.shape)
                    x = jnp.where(kept, x / (1 - layer["p"]), 0)
                case "Flatten":
                    x = x.reshape(len(x), -1)
                case kind:
                    raise ValueError(f"{kind} is not served")
        return x

    return apply


def main() -> None:
    folder = Path(sys.argv[1])
    work = json.loads((folder / "work.json").read_text())
    with np.load(folder / "arrays.npz") as arrays:
        params = [jnp.asarray(arrays[f"weight{number}"]) for number in range(work["weights"])]
        datasets = []
        for number in range(work["clients"]):
            examples = {"x": arrays[f"x{number}"], "y": arrays[f"y{number}"].astype(np.int32)}
            datasets.append(fedjax.ClientDataset(examples))
    apply = make_apply(work["layers"])

    def loss(params: Any, batch: Any, rng: Any) -> Any:
        scores = jax.nn.log_softmax(apply(params, batch["x"], rng))
        return -jnp.take_along_axis(scores, batch["y"][:, None], 1).mean()

    if work["optimizer"] == "SGD":
        optimizer = fedjax.optimizers.sgd(work["lr"])
    elif work["optimizer"] == "Adam":
        optimizer = fedjax.optimizers.adam(work["lr"])
    else:
        import optax

        # The weight decay is the default of torch.
        optimizer = fedjax.optimizers.create_optimizer_from_optax(optax.adamw(work["lr"], weight_decay=0.01))
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        optimizer,
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work["batch_size"], num_epochs=work["epochs"]),
    )
    state = algorithm.init(params)
    key = jax.random.PRNGKey(0)
    for line in sys.stdin:
        clients = [int(client) for client in line.split()]
        begun = time.process_time()
        key, *own = jax.random.split(key, len(clients) + 1)
        of_round = [(client, datasets[client], rng) for client, rng in zip(clients, own, strict=True)]
        state, _ = algorithm.apply(state, of_round)
        jax.block_until_ready(state)
        print(time.process_time() - begun, flush=True)


if __name__ == "__main__":
    main()
