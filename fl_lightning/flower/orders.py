"""Orders of the server to a client, and the client's answers.

An order says on which round a client works, from which model and with which settings. The answer holds what the client
sends after its exchanges. Neither has samples, losses of single samples, or tensors that a client keeps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor

from fl_lightning._lightning.logs.client_log import LoggedMean
from fl_lightning._lightning.loops.local_optimizers import Options
from fl_lightning.algorithms.versions import __version__
from fl_lightning.data import FederatedDataModule
from fl_lightning.flower.records import Parcel, Plain
from fl_lightning.flower.tensors import to_array
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.part import Part, walk

#: The number of the messages' form; another one is another meaning of their content.
FORM = 3


def describe_algorithm(algorithm: Algorithm) -> str:
    """Return the parts of which a client does some work, in a text that both sides compare."""
    held: list[Part] = [algorithm.objective, *algorithm.chain.members, algorithm.schedule, algorithm.optimizers]
    if algorithm.sampler.sends_scores:
        held.append(algorithm.sampler)
    # A dataclass would show the address of a function, which another process has elsewhere.
    return ", ".join(Part.__repr__(part) for part in walk(*held))


def describe_trainer(trainer: pl.Trainer) -> str:
    """Return the arguments of a Trainer that decide which steps a client takes, in a text that both sides compare."""
    names = ["gradient_clip_val", "gradient_clip_algorithm", "accumulate_grad_batches", "limit_train_batches"]
    names.append("overfit_batches")
    return ", ".join(f"{name}={getattr(trainer, name)}" for name in names)


def describe_data(data: FederatedDataModule) -> str:
    """Return the arguments of a data module that decide which batches a client has, in a text to compare."""
    return ", ".join(f"{name}={getattr(data, name)}" for name in ("batch_size", "shuffle", "drop_last"))


def parts_on_both_sides(algorithm: Algorithm) -> dict[str, Part]:
    """Return the parts that work at the server and at the client, and may tell each other something, by name."""
    known: dict[str, Part] = {"schedule": algorithm.schedule, "objective": algorithm.objective}
    known |= {f"exchange-{place}": member for place, member in enumerate(algorithm.chain.members)}
    return {name: part for name, part in known.items() if part.runs_where == "both"}


def state_arrays(name: str, state: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Return what a named part tells the other side as arrays of a message."""
    return {f"{name}/{key}": to_array(tensor) for key, tensor in state.items()}


def state_of(name: str, arrays: Mapping[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    """Return what the other side's part of that name has told, as :func:`state_arrays` made it arrays."""
    start = f"{name}/"
    told = {key.removeprefix(start): array for key, array in arrays.items() if key.startswith(start)}
    return {key: torch.from_numpy(array).to(device) for key, array in told.items()}


@dataclass(frozen=True, kw_only=True)
class _Record:
    """A record that travels between the server and a client.

    Attributes:
        run: The fit.
        client: The client's number, 0 to K-1.
        round: The round, from 0.
        message: The number of the message in the round, from 0; see :attr:`Task.message`.
        arrays: Arrays of numbers by name; see :mod:`fl_lightning.flower.tensors`.
    """

    run: str
    client: int
    round: int
    message: int = 0
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def to_parcel(self) -> Parcel:
        """Return the record as it travels."""
        values: dict[str, Plain] = dict(versions().values)
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "arrays":
                continue
            # Flower has no empty lists.
            if isinstance(value, tuple):
                if value:
                    values[each.name] = list(value)
            else:
                values[each.name] = value
        return Parcel(values, self.arrays)

    @classmethod
    def from_parcel(cls, parcel: Parcel) -> Self:
        """Return the record that travelled.

        Raises:
            ValueError: If it is of another version.
        """
        check_version(parcel)
        content: dict[str, Any] = {"arrays": parcel.arrays}
        for each in fields(cls):
            if each.name in parcel.values:
                value = parcel.values[each.name]
                content[each.name] = tuple(value) if isinstance(value, list) else value
        return cls(**content)


@dataclass(frozen=True, kw_only=True)
class Order(_Record):
    """The work of one client on one message; its arrays are the model, and the linear term that the server computed.

    Attributes:
        name: What the site calls itself: its number or its name.
        num_clients: K.
        samples: Samples n_k of the client.
        all_samples: Samples of all clients.
        counted: The message whose answer the server took last, by its round and its number; nothing for none.
        is_look: Whether the client is scored at the model, and does not train.
        seed: The run's seed.
        local_epochs: Local epochs.
        local_steps: Local steps instead; 0 for none.
        algorithm: The algorithm, as :func:`describe_algorithm` says it.
        trainer: The Trainer, as :func:`describe_trainer` says it.
        data: The data module, as :func:`describe_data` says it.
        max_epochs: Of the server's Trainer: after how many rounds its fit ends, -1 for never.
        layout: Digest of the names, shapes and type of the model's tensors.
        first: Digest of the values of the first model of all.
        options: The options of the optimizers' groups, in JSON; nothing for a client that does not train.
        changing: Names of the buffers that clients' training changes.
        pull: The objective's other terms, where the server computes them.
        weight_decay: See ``pull``.
    """

    name: str
    num_clients: int
    samples: int
    all_samples: int
    seed: int
    local_epochs: int
    local_steps: int
    algorithm: str
    trainer: str
    data: str
    max_epochs: int
    layout: str
    first: str
    options: str
    is_look: bool = False
    counted: tuple[int, ...] = ()
    changing: tuple[str, ...] = ()
    pull: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Answer(_Record):
    """What a client sends; its arrays are the model.

    Attributes:
        has_model: Whether it sends a model: none, if its values are not finite, or of a further training.
        steps: Optimizer steps that were made.
        numbers: Numbers that the objective sends.
        values: Values of the payload.
        bits_per_value: Bits of each of them.
        extra_bits: The payload's further bits.
        buffers: Names of the buffers among the arrays.
        changed: Names of the buffers that training changed, and that the server did not know to change.
        summed_lr: Sums of the learning rates, for each parameter tensor, if a part needs them.
        losses: F_k at the received model, if the objective measures it; else empty.
        scores: The client's score, if the sampler asks for one; else empty.
        batches: Batches after which a step was made, of all trainings of the round.
        all_steps: Optimizer steps of all trainings of the round.
        log_names: Names of the means that ``training_step`` logged; see :class:`LoggedMean`.
        log_means: The means.
        log_weights: Samples of which they are.
        log_on_bar: Which of them the progress bar shows.
    """

    has_model: bool = False
    steps: int = 0
    numbers: int = 0
    values: int = 0
    bits_per_value: float = 32.0
    extra_bits: int = 0
    buffers: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    summed_lr: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    batches: int = 0
    all_steps: int = 0
    log_names: tuple[str, ...] = ()
    log_means: tuple[float, ...] = ()
    log_weights: tuple[int, ...] = ()
    log_on_bar: tuple[bool, ...] = ()

    @property
    def logged(self) -> list[LoggedMean]:
        """The means that the client's ``training_step`` logged."""
        rows = zip(self.log_names, self.log_means, self.log_weights, self.log_on_bar, strict=True)
        return [LoggedMean(*row) for row in rows]


def versions(**values: Plain) -> Parcel:
    """Return a parcel of plain values that begins with the versions of this side."""
    return Parcel({"form": FORM, "version": __version__, **values})


def check_version(parcel: Parcel) -> None:
    """Raise ``ValueError`` if the other side has another version of the messages, or of the library."""
    form = parcel.values.get("form")
    version = parcel.values.get("version")
    if form != FORM or version != __version__:
        raise ValueError(
            f"The other side has fl-lightning {version} with messages of form {form}, this side {__version__} with "
            f"form {FORM}. Install the same version on the server and at all sites."
        )


# ---- options of optimizers ----


def options_to_text(options: Options) -> str:
    """Return options of optimizers in JSON, whose floating-point numbers are exact.

    Raises:
        ValueError: If one is no plain value.
    """
    try:
        return json.dumps([[_tagged(group) for group in groups] for groups in options])
    except TypeError as error:
        raise ValueError(
            f"Optimizers' options must be numbers and strings to travel to real clients: {error}. Give learning rates "
            "as numbers, not tensors."
        ) from error


def options_from_text(text: str) -> Options:
    """Return the options of optimizers that were made a text."""
    groups: Options = json.loads(text)
    return [[_untagged(group) for group in each] for each in groups]


def _tagged(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with tuples marked, which JSON has not."""
    return {name: {"tuple": list(value)} if isinstance(value, tuple) else value for name, value in group.items()}


def _untagged(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value["tuple"]) if isinstance(value, dict) else value for name, value in group.items()}
