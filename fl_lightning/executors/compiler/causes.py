"""Why a step cannot be captured or stacked: PyTorch's reasons in the user's words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fl_lightning._lightning.errors import CannotVectorize, describe_error

#: How Dynamo lists what a step changes beside its tensors.
_EFFECTS = re.compile(r"side effects happened.*double check: (\[.*\])")
_LIBRARY = Path(__file__).parents[2]
#: Folders of the library whose lines are not the user's.
_OWN = str(_LIBRARY / "executors"), str(_LIBRARY / "_lightning")


@contextmanager
def errors_of_step() -> Iterator[None]:
    """Raise ``CannotVectorize`` for any error of the user's step, which raises it again alone if it is a mistake."""
    try:
        yield
    except CannotVectorize:
        raise
    except Exception as error:
        raise CannotVectorize(cause_of(error)) from error


def cause_of(error: Exception) -> str:
    """Return why a step cannot be captured or stacked, in one line, with the user's file and line."""
    if isinstance(error, CannotVectorize):
        return str(error)
    text = str(error)
    message = re.search(r"Message: (.*)", text)
    explained = re.search(r"Explanation: (.*)", text)
    words = explained[1].strip().rstrip(".") if explained else describe_error(error)
    cause = message[1] if message else f"a step cannot be stacked: {words}"
    effects = effects_of(error)
    if effects:
        cause = changes(sorted(map(readable, effects)))
    cause = next((known for phrase, known in _CAUSES.items() if phrase in text), cause)
    lines = (
        re.findall(r'File "([^"]+)", line (\d+)', text.split("from user code:")[-1])
        if "from user code:" in text
        else []
    )
    mine = [(file, line) for file, line in lines if not file.startswith(_OWN) and not file.startswith("<")]
    return f"{cause} ({Path(mine[-1][0]).name}, line {mine[-1][1]})" if mine else cause


_DECIDES = (
    "Python decides by a tensor's value (`if`, `while`, `assert`), and each client has its own; use `torch.where`"
)
_SELECTS = "a selection's size depends on values, and each client has its own; weigh all samples instead"
_NUMBERS = "Python computes with a tensor's value (`.item()`, `float`), and each client has its own; keep it a tensor"
#: By what PyTorch says; the first one that is found.
_CAUSES = {
    "data-dependent branching": _DECIDES,
    "(Size-like symbols: u": _SELECTS,
    "Could not guard on data-dependent expression": _DECIDES,
    "Could not extract specialized integer": _DECIDES,
    "dynamic shape": _SELECTS,
    "use_numpy_random_stream": "`training_step` draws by numpy, of whose generator there is one for all clients",
    "calling .item() on a Tensor": _NUMBERS,
    "expected (<class 'numpy.integer'>": _NUMBERS,
    "Missing `as_proxy()`": "`training_step` gives PyTorch an object that is no tensor, such as a random generator",
    "trace_autograd_ops": "`training_step` takes gradients itself (`torch.autograd.grad`)",
    "cannot register a hook on a tensor": "`training_step` registers a hook on a tensor",
    "accessing `data` under vmap": "`training_step` writes to a parameter's `.data`",
    "Dynamo does not support RNN": "`nn.LSTM`, `nn.GRU` and `nn.RNN` compute one model at a time",
}


def effects_of(error: Exception) -> list[str]:
    """Return what a step changes beside its tensors, as Dynamo names it; nothing if another error was raised."""
    found = _EFFECTS.search(str(error))
    return [] if found is None else ast.literal_eval(found[1])


def changes(names: Sequence[str]) -> str:
    """Return the cause where a step changes things of these names."""
    held = ", ".join(f"`{name}`" for name in names)
    return f"`training_step` changes {held}, of which there is one for all clients"


def readable(source: str) -> str:
    """Return the name that a user gives to what Dynamo names so."""
    name = re.sub(r"G\['([^']+)'\]", r"\1", source.replace("L['module']", "self"))
    name = name.replace("self._trainer", "self.trainer")
    name = re.sub(r"__import_(\w+)", lambda found: found[1].replace("_dot_", "."), name)
    return re.sub(r"\._modules\['(\w+)'\]", r".\1", name)
