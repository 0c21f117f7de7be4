"""The part of a module's state that the federation shares, as one flat vector.

For a linear layer of two inputs and one output, followed by BatchNorm, the vector is::

    weight (2)  bias (1)  norm.weight (1)  norm.bias (1) | norm.running_mean (1)  norm.running_var (1)  counter (1)
    trained parameters, in the module's order            | everything else that training may change
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fl_lightning._lightning.evaluation.attributes import ids_of_metrics
from fl_lightning.parts.layout import Layout
from fl_lightning.parts.messages import same_values

#: Frozen tensors with more values than this many times those that require gradients stay out, unless they are few.
_FROZEN_SHARE = 2
#: So many values are few.
_FEW = 2**14
#: Values that are noted of a large tensor that must not change.
_SAMPLE = 64


class StateVector:
    """Reads and writes the federated state of a module as one vector of shape ``(size,)``.

    A parameter is trained if it requires a gradient and an optimizer holds it. Where no optimizer holds anything, as
    when ``configure_optimizers`` returns None, every parameter that requires a gradient is trained.

    The state is every parameter that is trained, followed by everything else that training may change, which is called
    a buffer here:

    * buffers of submodules in training mode (BatchNorm's running statistics and counters),
    * parameters that require a gradient and that no optimizer holds (a codebook, an ``AveragedModel``),
    * what is frozen when the fit begins: parameters without gradients (a teacher that follows by a moving average) and
      buffers of submodules in eval mode.

    A large frozen part, of more than twice as many values as require gradients, stays out and must be constant; so must
    frozen tensors that the vector's type cannot hold, and complex ones. Sparse buffers stay where they are. Integer
    buffers are carried as floating-point numbers and rounded when they are written: in double precision, if they may be
    too large for single precision. The states of torchmetrics objects are not part of it: they describe the round.

    Args:
        module: The module, on the device on which it trains.
        optimizers: The optimizers of ``configure_optimizers``, over the module's parameters.

    Raises:
        TypeError: If a trained parameter is complex.
        ValueError: If the module has no parameter to train.
    """

    def __init__(self, module: nn.Module, optimizers: Iterable[Optimizer] = ()) -> None:
        self.module = module
        named = _trained(module, optimizers)
        if not named:
            raise ValueError(
                f"{type(module).__name__} has nothing to train: no optimizer holds a parameter with "
                "`requires_grad=True`. Before `trainer.fit`, unfreeze at least one layer whose parameters "
                "`configure_optimizers` gives to an optimizer."
            )
        for name, parameter in named.items():
            if parameter.is_complex():
                raise TypeError(
                    f"The parameter {name!r} is complex ({parameter.dtype}); only real parameters can be averaged. "
                    "Store it as two real parameters."
                )
        #: The trained parameters, in the vector's order.
        self.parameters = list(named.values())
        self.device = self.parameters[0].device
        buffers = _buffers_in_training(module)
        self.dtype = torch.float32
        unfrozen = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for tensor in (*unfrozen, *buffers.values()):
            if tensor.is_floating_point():
                self.dtype = torch.promote_types(self.dtype, tensor.dtype)
        if any(_is_large(name, buffer) for name, buffer in buffers.items()):
            self.dtype = torch.float64
        parts = dict(module.named_modules())
        names = [*buffers, *self._further(buffers)]
        self._buffers = [_place_in(parts, name) for name in names]
        tensors = self.tensors()
        self._types = [tensor.dtype for tensor in tensors[len(named) :]]
        #: Where the tensors lie in the vector.
        self.layout = Layout.of_module(module, dict(zip([*named, *names], tensors, strict=True)), len(named))
        self._outside = [(name, *_place_in(parts, name)) for name in _others(module, tensors)]
        self._constant: list[_Noted | None] = [None for _ in self._outside]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trained parameters, in the vector's order."""
        return self.layout.trained

    def _further(self, buffers: Mapping[str, Tensor]) -> list[str]:
        """Return the names of the tensors that travel beside the trained parameters and the buffers in training mode.

        Those that require a gradient always travel: they are in no optimizer, but training may well write to them. The
        frozen ones travel if they are few.
        """
        found = _others(self.module, [*self.parameters, *buffers.values()])
        held = {name: tensor for name, tensor in found.items() if self._holds(tensor)}
        unfrozen_values = sum(parameter.numel() for parameter in self.parameters)
        frozen_values = 0
        for tensor in held.values():
            if tensor.requires_grad:
                unfrozen_values += tensor.numel()
            else:
                frozen_values += tensor.numel()
        are_few = frozen_values <= max(_FROZEN_SHARE * unfrozen_values, _FEW)
        return [name for name, tensor in held.items() if are_few or tensor.requires_grad]

    def _holds(self, tensor: Tensor) -> bool:
        """Whether the vector can hold a tensor as it is."""
        if not _travels(tensor) or tensor.device != self.device:
            return False
        # These cannot be written to: tensors made in inference mode, and expanded ones.
        if tensor.is_inference() or 0 in tensor.stride():
            return False
        if tensor.is_floating_point():
            return torch.promote_types(self.dtype, tensor.dtype) is self.dtype
        return self.dtype is torch.float64 or bool((tensor.double().abs() < 2**22).all())

    def read(self) -> Tensor:
        """Return a new vector that holds the module's present state.

        Raises:
            ValueError: If a tensor of the state has another shape than when the fit began.
        """
        vector = torch.empty(self.layout.size, dtype=self.dtype, device=self.device)
        tensors = self.tensors()
        shapes = tuple(tensor.shape for tensor in tensors)
        if shapes != self.layout.shapes:
            same = [now == before for now, before in zip(shapes, self.layout.shapes, strict=True)]
            name = self.layout.names[same.index(False)]
            raise ValueError(
                f"`{name}` of {type(self.module).__name__} has another shape than when "
                "the fit began, so models cannot be averaged. Register a buffer that grows at its final size."
            )
        with torch.no_grad():
            torch._foreach_copy_(self.layout.views(vector), tensors)
        return vector

    def holds(self, vector: Tensor) -> bool:
        """Return whether the module's present state has the values of ``vector``."""
        if self.device.type != "cpu":
            # A comparison of each tensor would wait for the device as often.
            return same_values(self.read(), vector)
        pairs = zip(self.tensors(), self.layout.views(vector), strict=True)
        return all(same_values(tensor.detach().to(view.dtype), view) for tensor, view in pairs)

    def write(self, vector: Tensor) -> None:
        """Copy ``vector`` into the module."""
        views = self.layout.views(vector)
        for (held, key), view, dtype in zip(self._buffers, views[len(self.parameters) :], self._types, strict=True):
            # A client's training has removed the tensor, which broke its round off.
            if held[key] is None:
                held[key] = torch.empty_like(view, dtype=dtype)
        with torch.no_grad():
            for tensor, view in zip(self.tensors(), views, strict=True):
                # It has changed the shape.
                if tensor.shape != view.shape:
                    tensor.resize_(view.shape)
                tensor.copy_(view if tensor.is_floating_point() else _like(tensor, view))

    @contextmanager
    def holding(self, vector: Tensor) -> Iterator[None]:
        """Let the module hold another state for a while."""
        with self.preserved():
            self.write(vector)
            yield

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Put the module's present state back at the end."""
        before = self.read()
        try:
            yield
        finally:
            self.write(before)

    def with_values(self, state_dict: Mapping[str, Any], vector: Tensor) -> dict[str, Any]:
        """Return a copy of the module's ``state_dict`` with other values, which the module does not take.

        Args:
            state_dict: Made just now.
            vector: The values, shape ``(size,)``.
        """
        held: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}
        for tensor, view in zip(self.tensors(), self.layout.views(vector), strict=True):
            held[_place(tensor)] = (tensor, view)
        copy = dict(state_dict)
        for name, value in state_dict.items():
            if not isinstance(value, Tensor):
                continue
            copy[name] = value.detach().clone()
            # An empty or sparse tensor lies nowhere in memory.
            if value.numel() and value.layout is torch.strided and _place(value) in held:
                tensor, view = held[_place(value)]
                copy[name] = _like(tensor, view)
        return copy

    def tensors(self) -> list[Tensor]:
        """Return the tensors of the module's state, parameters first."""
        tensors: list[Tensor] = list(self.parameters)
        # Buffers are looked up each time, because a module may replace one by assignment.
        for place, (held, key) in enumerate(self._buffers):
            buffer = held[key]
            if buffer is None:
                raise ValueError(
                    f"`{self.layout.buffers[place]}` of {type(self.module).__name__} is None, and was a tensor when "
                    "the fit began, so models cannot be averaged. Let it stay a tensor."
                )
            tensors.append(buffer)
        return tensors

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the tensors of a state by name, in the module's types; not to be written to."""
        named: dict[str, Tensor] = {}
        for name, view, held in zip(self.layout.names, self.layout.views(vector), self.tensors(), strict=True):
            named[name] = view if view.dtype == held.dtype else _like(held, view)
        return named

    def buffers(self) -> dict[str, Tensor]:
        """Return copies of the state's buffers by name, as far as the module holds them."""
        copies: dict[str, Tensor] = {}
        for name, (held, key) in zip(self.layout.buffers, self._buffers, strict=True):
            buffer = held[key]
            if buffer is not None:
                copies[name] = buffer.detach().clone()
        return copies

    def parameter_views(self, vector: Tensor) -> list[Tensor]:
        """Return views of the trained parameters of a model, or of a vector of them alone, in their shapes."""
        return self.layout.views(vector)[: len(self.parameters)]

    def check_unchanged(self, optimizers: Iterable[Optimizer] = ()) -> None:
        """Raise ``RuntimeError`` when other parameters are trained now than when the fit began.

        Args:
            optimizers: The optimizers as they are now.
        """
        now = {id(p): name for name, p in _trained(self.module, optimizers).items()}
        before = {id(p): name for p, name in zip(self.parameters, self.names, strict=True)}
        if now.keys() != before.keys():
            other = sorted({(now | before)[key] for key in now.keys() ^ before.keys()})
            raise RuntimeError(
                f"The trained parameters of {type(self.module).__name__} changed during the fit: {', '.join(other)}. "
                "Freeze, unfreeze or replace parameters, and choose those of optimizers, before `trainer.fit`; write "
                "new values by `.data.copy_(...)`."
            )

    def note_constant(self) -> None:
        """Note what :meth:`check_constant` needs to find changes of what does not travel."""
        for place, (_, held, key) in enumerate(self._outside):
            tensor = held[key]
            noted = self._constant[place]
            if tensor is None:
                self._constant[place] = None
            elif noted is None or not noted.holds_for(tensor):
                self._constant[place] = _Noted(tensor)

    def check_constant(self) -> None:
        """Raise ``RuntimeError`` if training changed what does not travel."""
        for (name, held, key), before in zip(self._outside, self._constant, strict=True):
            now = held[key]
            if now is None or before is None:
                continue
            if before.differs_from(now):
                # A small tensor is known as a whole, and put back.
                if now.shape == before.sample.shape:
                    now.data = before.sample
                raise RuntimeError(
                    f"Training changed the frozen tensor {name!r} of {type(self.module).__name__}, which must be "
                    "constant: frozen tensors are averaged only if they are real, of the trained parameters' type, and "
                    f"at most {_FROZEN_SHARE} times as large in all as what requires gradients. Store it as a buffer "
                    "of a submodule in training mode; a complex one as two real ones."
                )


def unshared(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return gradients to change in place: ``autograd.grad`` may hand one tensor out twice, or an expanded one."""
    seen: set[int] = set()
    own: list[Tensor | None] = []
    for gradient in gradients:
        if gradient is not None:
            if gradient.data_ptr() in seen or 0 in gradient.stride():
                gradient = gradient.clone()
            seen.add(gradient.data_ptr())
        own.append(gradient)
    return own


def _trained(module: nn.Module, optimizers: Iterable[Optimizer]) -> dict[str, nn.Parameter]:
    """Return the trained parameters by name: those that require a gradient and that an optimizer holds."""
    held: set[int] = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            held.update(id(parameter) for parameter in group["params"])
    unfrozen = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    # Without an optimizer the user's own steps train, and only gradients tell what.
    if not held:
        return unfrozen
    return {name: parameter for name, parameter in unfrozen.items() if id(parameter) in held}


def _buffers_in_training(module: nn.Module) -> dict[str, Tensor]:
    """Return every distinct buffer of submodules in training mode that can travel."""
    found: dict[int, tuple[str, Tensor]] = {}
    part: nn.Module
    for path, part in module.named_modules():
        if not part.training:
            continue
        for key, buffer in part.named_buffers(recurse=False):
            if _travels(buffer):
                name = f"{path}.{key}".lstrip(".")
                found.setdefault(id(buffer), (name, buffer))
    return dict(found.values())


def _others(module: nn.Module, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the module's dense tensors, without metrics', that share no memory with the given or with each other."""
    memory = _Memory()
    for tensor in tensors:
        memory.take(tensor)
    of_metrics = ids_of_metrics(module)
    found: dict[str, Tensor] = {}
    part: nn.Module
    for path, part in module.named_modules():
        if id(part) in of_metrics:
            continue
        for key, own in (*part._parameters.items(), *part._buffers.items()):
            if own is None or own.layout is not torch.strided or not own.numel():
                continue
            if memory.take(own):
                found[f"{path}.{key}".lstrip(".")] = own
    return found


class _Memory:
    """The memory of some tensors; the weights of a recurrent layer are neighbours in one storage on GPUs."""

    def __init__(self) -> None:
        self._taken: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)

    def take(self, tensor: Tensor) -> bool:
        """Take the memory of a dense tensor; return false if some of it was taken before."""
        begin = tensor.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        end = begin + tensor.itemsize * (last + 1)
        taken = self._taken[tensor.untyped_storage().data_ptr()]
        is_free = all(end <= other_begin or other_end <= begin for other_begin, other_end in taken)
        if is_free:
            taken.append((begin, end))
        return is_free


def _place_in(parts: Mapping[str, nn.Module], name: str) -> tuple[dict[str, Any], str]:
    """Return where a module's named parts hold the named parameter or buffer: a dictionary and a key."""
    path, _, key = name.rpartition(".")
    owner = parts[path]
    if key in owner._parameters:
        return owner._parameters, key
    return owner._buffers, key


class _Noted:
    """The sum and some values of a tensor that must not change.

    PyTorch counts the writes into a tensor, so the sum is taken again only after one. A write past the count, by
    ``tensor.data``, is found only among the noted values.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.sample = _sample(tensor).clone()
        self._sum = _sum(tensor)
        self._tensor = tensor
        self._writes = tensor._version

    def holds_for(self, tensor: Tensor) -> bool:
        """Return whether this was noted of the tensor, into which nothing was written since, as far as is known."""
        is_untouched = tensor is self._tensor and tensor._version == self._writes
        return is_untouched and same_values(_sample(tensor), self.sample)

    def differs_from(self, now: Tensor) -> bool:
        """Return whether the tensor holds other values by now."""
        if self.holds_for(now):
            return False
        return not (same_values(_sample(now), self.sample) and same_values(_sum(now), self._sum))


def _sample(tensor: Tensor) -> Tensor:
    """Return a tensor, of a large one a view of some of its values."""
    if tensor.numel() <= _SAMPLE or 0 in tensor.stride():
        return tensor.detach()
    return tensor.detach().as_strided((_SAMPLE,), (tensor.numel() // _SAMPLE,))


def _sum(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor's values in double precision, shape ``()``."""
    return tensor.detach().sum(dtype=torch.complex128 if tensor.is_complex() else torch.float64)


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    """Return values as a tensor's type holds them; whole numbers that are unchanged stay exact."""
    if tensor.is_floating_point():
        return values.to(tensor.dtype, copy=True)
    if torch.equal(tensor.to(values.dtype), values):
        return tensor.detach().clone()
    return values.round().to(tensor.dtype)


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Return where a tensor lies in memory, and how."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _travels(buffer: Tensor) -> bool:
    """Whether a buffer can be part of a vector: a dense tensor of real numbers."""
    return buffer.layout is torch.strided and not buffer.is_complex()


def _is_large(name: str, buffer: Tensor) -> bool:
    """Whether single precision may not hold a buffer's whole numbers; BatchNorm's counters count steps from 0."""
    if buffer.is_floating_point() or buffer.dtype in (torch.bool, torch.int8, torch.uint8, torch.int16):
        return False
    return not name.endswith("num_batches_tracked") or bool((buffer.abs() >= 2**22).any())
