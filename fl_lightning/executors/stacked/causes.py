"""Why clients cannot be trained at once, in words for users."""

from __future__ import annotations

import logging
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from fl_lightning._lightning.cannot_vectorize import CannotVectorize, describe_error
from fl_lightning.executors.stacked.decisions import DECIDES
from fl_lightning.executors.stacked.guards.effects import library_folders

# in the words of the headings of docs/your-code.md
_TAKES_OUT = "a number is taken out of a tensor (`float`, `int`, `tolist`, `numpy`), and each client has its own"
_SELECTS = "a selection's size depends on values, and each client has its own"
_DATA = "`training_step` reads or sets `.data` of a tensor, which a stack keeps elsewhere (`.detach()` reads the same)"
_GRADIENTS = (
    "gradients are taken inside of `training_step`, and a stack takes those of all clients after it (`torch.func.grad` "
    "computes the same, in a stack too)"
)
_OF_ITEM = "a number that `.item()` took out of a tensor is given to other code, and each client has its own"
_RECURRENT = "`nn.LSTM`, `nn.GRU` and `nn.RNN` compute one model at a time"
#: Why weights of the copy that a trial makes useless are seen.
BY_ANOTHER_WAY = (
    "`training_step` takes parameters or buffers by another way than as attributes of the module, such as a list of "
    "them that was kept"
)
#: Why activation checkpointing, and what else hooks into tensors that are saved for the backward pass, fails.
SAVED_HOOKS = (
    "activation checkpointing (`torch.utils.checkpoint`), or another hook on saved tensors, works in the backward "
    "pass, which a stack takes after the step, for all clients"
)
_CAUSES = {
    "__bool__": DECIDES,
    **dict.fromkeys(("__float__", "__int__", "__index__", "__complex__"), _TAKES_OUT),
    **dict.fromkeys(("tolist", "numpy", "__array__"), _TAKES_OUT),
    **dict.fromkeys(("grad", "backward", "requires_grad_"), _GRADIENTS),
    **dict.fromkeys(("nonzero", "argwhere", "masked_select", "unique", "_unique2"), _SELECTS),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _RECURRENT),
    "_pack_padded_sequence": "a packed sequence has a size of its own for each client",
}
_DECIDES_INSIDE = ("data-dependent control flow", "not implemented for aten::equal")
_ITEM = ".item() on a Tensor"  # in torch's error for a size that is a tensor, such as `torch.arange(lengths.max())`


def cause_of(function: Any, error: Exception) -> str:
    """Return why a function of torch does not work for several clients.

    Args:
        function: The function.
        error: What it has raised.
    """
    name = getattr(function, "__name__", str(function))
    if name in ("__get__", "__set__") and getattr(function.__self__, "__name__", "") == "data":  # of an attribute
        return _DATA
    if name not in _CAUSES and _ITEM in str(error):
        return f"`{name}` takes a number out of a tensor, and each client has its own"
    if "dynamic shape" in str(error):  # such as of `torch.where(condition)`
        return _SELECTS
    if any(text in str(error) for text in _DECIDES_INSIDE):
        return f"`{name}` decides by a tensor's values inside of torch, and each client has its own"
    if _is_of_item(error):
        return _OF_ITEM
    return _CAUSES.get(name) or f"{name} fails on stacked models ({describe_error(error)})"


def _is_of_item(error: Exception) -> bool:
    """Whether an error tells that what stands for ``tensor.item()`` is no number."""
    return any(text in str(error) for text in ("dtype of Item", "operand 'Item'"))


def cause_of_step(error: Exception) -> str:
    """Return why a step does not work for several clients, where no function of torch is to blame."""
    if SAVED_HOOKS in str(error):
        return SAVED_HOOKS
    return _OF_ITEM if _is_of_item(error) else f"`training_step` fails on stacked models ({describe_error(error)})"


def log_why(log: logging.Logger, message: str, error: Exception) -> None:
    """Write a message and an error's traceback to the debug log.

    As text: a handler that keeps the error would keep its frames, and with them what stands for many clients' values.
    """
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s\n%s", message, "".join(traceback.format_exception(error)).rstrip())


def reason(error: Exception) -> str:
    """Return why clients are not stacked, with the last line of code of the user's own that ran."""
    known = isinstance(error, CannotVectorize)
    cause = str(error) if known else f"a client's training fails on stacked models ({describe_error(error)})"
    line = _line_of_user(error.__traceback__)
    return cause if line is None else f"{cause} ({line})"


def _line_of_user(trace: TracebackType | None) -> str | None:
    """Return the file's name and the number of the last line that is of no library and not of Python's own."""
    ignored = (*library_folders(), sysconfig.get_paths()["stdlib"])
    found = [(file, number) for file, number in _lines(trace) if not file.startswith((*ignored, "<"))]
    return f"{_short(Path(found[-1][0]))}, line {found[-1][1]}" if found else None


def _short(file: Path) -> str:
    """Return a file's name, and that of the package before it if it is one that was installed."""
    packages = [place for place, part in enumerate(file.parts) if part in ("site-packages", "dist-packages")]
    return "/".join(file.parts[packages[-1] + 1 :]) if packages else file.name


def _lines(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
