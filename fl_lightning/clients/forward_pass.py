"""The forward pass of a client's step, as a loss sees it.

The user's own ``training_step`` is what runs. What is added to the logits is added where the output layer returns them,
inside the step, so that class weights, focal losses, sums and ignored positions stay those of the user. What another
model makes of the batch is read from a second run of the same step, with that model's tensors and the same random
numbers, so that it sees the inputs, lengths and masks that the client's model saw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning._lightning.evaluation.predictions import preserved_modes, rule_of
from fl_lightning._lightning.evaluation.unlogged import UnloggedTraining
from fl_lightning._lightning.loops.local_optimizers import maximizes
from fl_lightning._lightning.loops.steps import TrainingStep
from fl_lightning.clients.output_layer import OutputLayer, copied
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.parts.objectives.corrections import ChangedLoss
from fl_lightning.seeding import global_states, preserved_generators, set_global_states


class _Calls:
    """Keeps what a layer is given and returns while it is entered, and may change what it returns.

    Args:
        layer: The layer.
        change: Makes another output of a call's number and output.
    """

    def __init__(self, layer: nn.Module, change: Callable[[int, Tensor], Tensor] | None = None) -> None:
        self._layer = layer
        self._change = change
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []

    def __enter__(self) -> _Calls:
        self._hook = self._layer.register_forward_hook(self._note, with_kwargs=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()

    def _note(self, layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> Tensor:
        number = len(self.outputs)
        self.inputs.append(args[0] if args else next(iter(kwargs.values())))
        self.outputs.append(output)
        if self._change is None:
            return output
        return self._change(number, output)

    def rows(self, numbers: list[int]) -> tuple[Tensor, Tensor]:
        """Return the inputs and outputs of some calls, shape ``(rows, width)`` and ``(rows, classes)``."""
        inputs = [self.inputs[number] for number in numbers]
        outputs = [self.outputs[number] for number in numbers]
        return _rows(inputs), _rows(outputs)


def _rows(tensors: list[Tensor]) -> Tensor:
    rows = [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


class RecordedPass:
    """The latest forward pass of a client; see :class:`~fl_lightning.parts.ForwardPass`.

    Args:
        changed: What the client's objective asks for: another loss, or shifted logits.
        vector: The federated state of the module.
        trainer: The trainer; its data module says which element of a batch is the target.
        output: Finds the output layer.
        quiet: Runs the module's ``training_step`` without a trace.
    """

    def __init__(
        self,
        changed: ChangedLoss,
        vector: StateVector,
        trainer: pl.Trainer,
        output: OutputLayer,
        quiet: UnloggedTraining,
    ) -> None:
        self._changed = changed
        self._vector = vector
        self._trainer = trainer
        self._quiet = quiet
        self.module: nn.Module = trainer.lightning_module
        self.batch: Any = None
        self._output = output
        self._index = 0
        self._layer: nn.Module | None = None
        if changed.output_layer is not None:
            self._layer = output.named(changed.output_layer)
        self._is_first = True
        #: Whether the module's loss is maximised, so that objectives see and change its negative.
        self._is_maximised = bool(maximizes(trainer.optimizers))
        self._rows: tuple[Tensor, Tensor] | None = None
        #: Numbers of the layer's calls with gradients, among all of its calls in a step.
        self._numbers: list[int] = []
        #: What a second run of the step needs: the states of generators, and the module's attributes.
        self._before: tuple[Any, Any] = ((), ())

    def run(self, step: TrainingStep, batch: Any, index: int) -> Any:
        """Run a step, and return what it returned, with the loss that the objective makes of its loss.

        Args:
            step: ``training_step``, as Lightning calls it.
            batch: The batch.
            index: Its place.

        Raises:
            ValueError: If the step does not call the output layer, or the shift does not suit its logits and targets.
        """
        if self._layer is None:
            self._layer = self._output.of(batch, index)
        layer = self._layer
        if layer is None:
            return step(batch, index)
        change = self._changed.loss
        self.batch = batch
        self._index = index
        if change is not None or self._is_first:
            self.batch = copied(batch)
        if change is not None:
            self._before = global_states(self._vector.device), self._quiet.attributes.read()
        with _Calls(layer, None if self._changed.shift is None else self._shifted) as calls:
            output = step(batch, index)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            return output
        self._numbers = [number for number, each in enumerate(calls.outputs) if each.requires_grad]
        if not self._numbers:
            raise ValueError(
                f"`training_step` of {type(self.module).__name__} does not call its output layer, a "
                f"{type(layer).__name__}, with gradients, so the objective finds no features and logits. Call the "
                "layer itself, not a function of its weights, or name another one as `output_layer`."
            )
        self._rows = calls.rows(self._numbers)
        if self._is_first and self._changed.shift is not None:
            self._check_shifted(loss)
        self._is_first = False
        if change is not None:
            with self._trainer.precision_plugin.train_step_context():
                loss = self._turned(change(self._turned(loss), self))
        # Nothing holds the graph any longer.
        self.batch = None
        self._rows = None
        return {**output, "loss": loss} if isinstance(output, Mapping) else loss

    def _shifted(self, number: int, output: Tensor) -> Tensor:
        """Return shifted logits; without gradients, where a step only looks, the logits as they are."""
        shift = self._changed.shift
        assert shift is not None
        further = output.shape[-1] - len(shift)
        if further < 0:
            raise ValueError(
                f"The client has samples of class {len(shift) - 1}, and the output layer of "
                f"{type(self.module).__name__} has {output.shape[-1]} outputs, one a class. Give it more, or name "
                "another layer as `output_layer`."
            )
        if not torch.is_grad_enabled():
            return output
        return output + F.pad(shift.to(output), (0, further), value=-torch.inf)

    def _check_shifted(self, loss: Tensor) -> None:
        """Raise ``ValueError`` if targets are no classes of the logits' rows, or the loss counts absent classes."""
        if self.target.numel() != len(self.logits):
            raise ValueError(
                f"Logits are shifted by classes, so each row of logits needs one class, got {len(self.logits)} rows "
                f"and {self.target.numel()} targets. Several labels a sample have no class."
            )
        if not loss.isfinite().all() and bool(self.logits.isfinite().all()):
            raise ValueError(
                "The client lacks some classes, whose logits are shifted to minus infinity so that they do not count, "
                f"and the loss of {type(self.module).__name__} counts them: it is {float(loss.detach())}. Label "
                "smoothing and losses of single logits do so; use a loss that looks at the true class alone."
            )

    @property
    def _seen(self) -> tuple[Tensor, Tensor]:
        assert self._rows is not None
        return self._rows

    @property
    def target(self) -> Tensor:
        """The batch's targets, shape ``(rows,)``."""
        target: Tensor = rule_of(self._trainer)(self.batch, None)[1]
        return target.flatten()

    @property
    def features(self) -> Tensor:
        """The input of the output layer, shape ``(rows, width)``."""
        return self._seen[0]

    @property
    def logits(self) -> Tensor:
        """The output of the output layer, shape ``(rows, classes)``, before a shift."""
        return self._seen[1]

    def of(self, model: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and logits of another model, shape ``(size,)``, in eval mode and without gradients."""
        values = self._vector.named(model)
        # The step may write to buffers, which here are parts of the model.
        for name in self._vector.buffers():
            values[name] = values[name].clone()
        with preserved_modes(self.module):
            self.module.eval()
            calls, _ = self._again(values)
        features, logits = calls.rows(self._numbers)
        return features.detach(), logits.detach()

    def loss_of(self, logits: Tensor) -> Tensor:
        """Return what the step's loss is with other logits, shape ``(rows, classes)``, which alone get gradients."""
        sizes = [0] * (max(self._numbers) + 1)

        def replaced(number: int, output: Tensor) -> Tensor:
            if number not in self._numbers:
                return output
            sizes[number] = output.numel() // output.shape[-1]
            begin = sum(sizes[:number])
            return logits[begin : begin + sizes[number]].view(output.shape)

        trained = dict(zip(self._vector.names, self._vector.parameters, strict=True))
        values = {name: parameter.detach() for name, parameter in trained.items()}
        _, loss = self._again({**values, **self._vector.buffers()}, replaced)
        assert loss is not None
        return self._turned(loss)

    def _turned(self, loss: Tensor) -> Tensor:
        """Return what is minimised, given what ``training_step`` returns; or the other way round."""
        return -loss if self._is_maximised else loss

    def _again(
        self, values: Mapping[str, Tensor], change: Callable[[int, Tensor], Tensor] | None = None
    ) -> tuple[_Calls, Tensor | None]:
        """Run the step on the same batch with other values, from the generators and attributes that it began with."""
        assert self._layer is not None
        states, held = self._before
        with preserved_generators(self._vector.device), _Calls(self._layer, change) as calls:
            set_global_states(states, self._vector.device)
            loss = self._quiet.loss_of_step(values, copied(self.batch), self._index, held)
        return calls, loss
