"""The part of a module's state that the federation shares, as one flat vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from fl_lightning.clients.places import Places


class StateVector:
    """Reads and writes the federated state of a module as one vector of shape ``(size,)``.

    The state is every parameter that is trained followed by every buffer of a submodule in training mode (BatchNorm's
    running statistics and counters). What is frozen, or in eval mode when the fit begins, is the same everywhere and
    stays out; so do complex buffers, which must be constant. Integer buffers are carried as floating-point numbers and
    rounded when they are written: in double precision, if they may be too large for single precision. The states of
    torchmetrics objects are not part of it: they describe the round.

    Args:
        module: The module, on the device on which it trains.

    Raises:
        TypeError: If a trained parameter is complex or was never initialised.
        ValueError: If the module has no parameter to train.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError(
                f"{type(module).__name__} has no parameter with `requires_grad=True`: there is nothing to train. "
                "Unfreeze at least one layer before `trainer.fit`."
            )
        for name, parameter in named:
            if isinstance(parameter, UninitializedParameter):
                raise TypeError(
                    f"The lazy parameter {name!r} is not initialised, so its size is unknown. "
                    "Run one forward pass on a sample batch before `trainer.fit`."
                )
            if parameter.is_complex():
                raise TypeError(
                    f"The parameter {name!r} is complex ({parameter.dtype}); only real parameters can be averaged. "
                    "Store it as two real parameters."
                )
        self._parameters = [parameter for _, parameter in named]
        #: Names of the trained parameters, in the vector's order.
        self.names = [name for name, _ in named]
        self._buffer_owners = _owners_of_buffers(module)
        module_names = {id(submodule): name for name, submodule in module.named_modules()}
        #: Names of the buffers, in the vector's order.
        self.buffer_names = [f"{module_names[id(owner)]}.{name}".lstrip(".") for owner, name in self._buffer_owners]
        tensors = self._tensors()
        self._complex: list[tuple[nn.Module, str, Tensor]] = []
        self._shapes = [tensor.shape for tensor in tensors]
        self._lengths = [tensor.numel() for tensor in tensors]
        self.size = sum(self._lengths)
        self.num_parameters = sum(p.numel() for p in self._parameters)
        self.device = self._parameters[0].device
        self.dtype = torch.float32
        for tensor in tensors:
            if tensor.is_floating_point():
                self.dtype = torch.promote_types(self.dtype, tensor.dtype)
        if any(_is_large(name, buffer) for name, buffer in zip(self.buffer_names, self._buffers(), strict=True)):
            self.dtype = torch.float64

    @property
    def tensor_names(self) -> list[str]:
        """Names of the tensors of the state, parameters first."""
        return [*self.names, *self.buffer_names]

    @property
    def shapes(self) -> list[torch.Size]:
        """Shapes of the tensors of the state, parameters first."""
        return self._shapes

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters, in the vector's order."""
        return self._parameters

    def read(self) -> Tensor:
        """Return a new vector that holds the module's present state.

        Raises:
            ValueError: If a tensor of the state has another shape than when the fit began.
        """
        vector = torch.empty(self.size, dtype=self.dtype, device=self.device)
        tensors = self._tensors()
        for name, tensor, shape in zip(self.tensor_names, tensors, self._shapes, strict=True):
            if tensor.shape != shape:
                raise ValueError(
                    f"`{name}` of {type(self.module).__name__} had the shape {tuple(shape)} when the fit began and "
                    f"has {tuple(tensor.shape)} now, so that clients' models cannot be averaged. Register a buffer "
                    "that grows at its final size, or keep it in an attribute that is no buffer."
                )
        with torch.no_grad():
            torch._foreach_copy_(self.views(vector), tensors)
        return vector

    def write(self, vector: Tensor) -> None:
        """Copy ``vector`` into the module."""
        with torch.no_grad():
            for tensor, view in zip(self._tensors(), self.views(vector), strict=True):
                if tensor.shape != view.shape:  # a client's training has changed it, which broke its round off
                    tensor.resize_(view.shape)
                if tensor.is_floating_point():
                    tensor.copy_(view)
                elif not torch.equal(tensor.to(vector.dtype), view):  # unchanged whole numbers stay exact
                    tensor.copy_(view.round())

    def tensors(self) -> list[Tensor]:
        """Return the tensors of the module's state, parameters first."""
        return self._tensors()

    def places(self) -> Places:
        """Return where the module holds the tensors of its state."""
        return Places(self.module, self._tensors())

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return views of ``vector`` shaped as the tensors of the state, parameters first."""
        parts = vector.split(self._lengths)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def parameter_views(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector of the parameters' values alone, shaped as the parameters."""
        lengths = self._lengths[: len(self._parameters)]
        return [part.view(p.shape) for part, p in zip(vector.split(lengths), self._parameters, strict=True)]

    def check_unchanged(self) -> None:
        """Raise ``RuntimeError`` when other parameters are trained now than when the fit began."""
        now = {id(p) for p in self.module.parameters() if p.requires_grad}
        if now != {id(p) for p in self._parameters}:
            raise RuntimeError(
                f"The trained parameters of {type(self.module).__name__} changed during the fit "
                f"({len(self._parameters)} tensors before, {len(now)} now), so the clients' models no longer match the "
                "server's. Freeze or unfreeze layers before `trainer.fit`, and continue from a checkpoint's weights."
            )

    def keep_complex(self) -> None:
        """Note the values of complex buffers, for :meth:`check_complex`."""
        held = [(owner, *named) for owner in self.module.modules() for named in owner.named_buffers(recurse=False)]
        self._complex = [(owner, name, buffer.clone()) for owner, name, buffer in held if buffer.is_complex()]

    def check_complex(self) -> None:
        """Raise ``RuntimeError`` if training changed a complex buffer, having put its value back."""
        for owner, name, before in self._complex:
            now = owner._buffers[name]
            if now is not None and not torch.equal(_bytes(now), _bytes(before)):
                for each, own_name, value in self._complex:
                    each._buffers[own_name] = value
                raise RuntimeError(
                    f"Training changed the complex buffer {name!r} of {type(owner).__name__}. Only real numbers are "
                    "averaged, so complex buffers must be constant. Store it as two real buffers."
                )

    def _tensors(self) -> list[Tensor]:
        return [*self._parameters, *self._buffers()]

    def _buffers(self) -> list[Tensor]:
        # they are looked up each time, because a module may replace one by assignment
        buffers = [owner._buffers[name] for owner, name in self._buffer_owners]
        return [buffer for buffer in buffers if buffer is not None]


def unshared(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return gradients to change in place: ``autograd.grad`` may hand one tensor out twice, or an expanded one."""
    seen: set[int] = set()
    own: list[Tensor | None] = []
    for gradient in gradients:
        if gradient is not None:
            if gradient.data_ptr() in seen or 0 in gradient.stride():
                gradient = gradient.clone(memory_format=torch.contiguous_format)
            seen.add(gradient.data_ptr())
        own.append(gradient)
    return own


def _owners_of_buffers(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return (submodule, name) for every distinct buffer that training may change."""
    owners: list[tuple[nn.Module, str]] = []
    seen: set[int] = set()
    for submodule in (m for m in module.modules() if m.training):
        for name, buffer in submodule.named_buffers(recurse=False):
            if id(buffer) not in seen and not buffer.is_complex():
                seen.add(id(buffer))
                owners.append((submodule, name))
    return owners


def _bytes(buffer: Tensor) -> Tensor:
    """Return a complex tensor's memory, in which NaN equals NaN."""
    return torch.view_as_real(buffer.resolve_conj()).contiguous().view(torch.uint8)


def _is_large(name: str, buffer: Tensor) -> bool:
    """Whether single precision may not hold a buffer's whole numbers; BatchNorm's counters count steps from 0."""
    if buffer.is_floating_point() or buffer.dtype in (torch.bool, torch.int8, torch.uint8, torch.int16):
        return False
    return not name.endswith("num_batches_tracked") or bool((buffer.abs() >= 2**22).any())
