"""Why a step cannot be captured or stacked: PyTorch's reasons in the user's words, with the place in the user's code.

If the worked example opened a file, PyTorch would say the first of these, and a fit the second::

    Explanation: Dynamo does not know how to trace builtin operator `open` with argument types ['str'] ...
    from user code:
       File "/home/me/module.py", line 12, in training_step

    `training_step` opens a file, which a stack would do once for all clients (module.py, line 12)
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fl_lightning._lightning.errors import CannotVectorize, describe_error

_LIBRARY = Path(__file__).parents[2]
#: Folders of the library whose lines are nobody's.
_OWN = (str(_LIBRARY / "executors"), str(_LIBRARY / "_lightning"), "<")
#: Folders of Python and of installed packages.
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})

#: How Dynamo lists what a step changes beside its tensors.
_EFFECTS = re.compile(r"side effects happened.*double check: (\[.*\])")
#: What comes before the lines of code.
_BEFORE_CODE = re.compile(r"from user code:|Original traceback:")

#: What PyTorch says where a transform, such as `torch.func.grad`, has failed within `vmap`.
_HIDES_ANOTHER = re.compile(r"TransformType::Vmap INTERNAL ASSERT")

_DECIDES = (
    "Python decides by a tensor's value or a random number (`if`, `while`, `assert`), and each client has its own; use "
    "`torch.where`"
)
#: Where sizes depend on values.
SELECTS = "a selection's size depends on values, and each client has its own; weigh all samples instead"
_NUMBERS = "Python computes with a tensor's value (`.item()`, `float`), and each client has its own; keep it a tensor"
_TEXTS = "Python makes a text of a tensor's value, and each client has its own"
_NUMPY = "`training_step` draws by numpy, of whose generator there is one for all clients"
#: Of functions that are not drawn client by client.
_PYTHONS_RANDOM = r"`training_step` draws by `random.\1`, of whose generator there is one for all clients"
_LOCKS = "`training_step` uses a lock or asks for its thread, as Python's `logging` does"
_OVERWRITES = (
    "`training_step` writes clients' values into a tensor of which there is one for all clients; make a new tensor"
)
#: What PyTorch says, as a pattern, and what it means; the first one that is found.
_CAUSES = (
    (r"data-dependent branching", _DECIDES),
    (r"\(Size-like symbols: u", SELECTS),
    (r"PendingUnbackedSymbolNotFound", SELECTS),
    (r"Could not guard on data-dependent expression", _DECIDES),
    (r"Could not extract specialized integer", _DECIDES),
    (r"one_hot` with data-dependent output shape", "`one_hot` without `num_classes` has a size that values decide"),
    (r"dynamic shape", SELECTS),
    (r"use_numpy_random_stream", _NUMPY),
    (r"of class `Generator`|bound method RandomState", _NUMPY),
    (r"function `Random\.(\w+)`", _PYTHONS_RANDOM),
    (r"builtin `[^`]*Random\.(\w+?)\.?`", _PYTHONS_RANDOM),
    (r"random\.(\w+)\.__self__", _PYTHONS_RANDOM),
    (r"calling .item\(\) on a Tensor", _NUMBERS),
    (r"expected \(<class 'numpy.integer'>", _NUMBERS),
    (r"'Tensor' object has no attribute '__round__'", _NUMBERS),
    (r"has a non-Tensor output whose value is dependent", _NUMBERS),
    (r"tp_repr|Tensor repr requires actual runtime values", _TEXTS),
    (
        r"Missing `as_proxy\(\)`",
        "`training_step` gives PyTorch an object that is no tensor, such as a random generator",
    ),
    (r"function `manual_seed`", "`training_step` seeds a generator (`manual_seed`), which all clients share"),
    (r"trace_autograd_ops", "`training_step` takes gradients itself (`torch.autograd.grad`)"),
    (r"cannot register a hook on a tensor", "`training_step` registers a hook on a tensor"),
    (r"retain_grad", "`training_step` calls `retain_grad()`, and a stack takes gradients after it"),
    (r"does not require grad and does not have a grad_fn", "the loss does not depend on a parameter that is trained"),
    (
        r"view size is not compatible",
        "`training_step` takes a view of a tensor that lies in memory in another way in a stack; use `reshape`",
    ),
    (r"[Rr]ecompile_?\s?limit", "`training_step` computes something else in each of many steps, and each is captured"),
    (r"hooks require compiled autograd", "a module has backward hooks, which see one model at a time"),
    (r"`requires_grad_\(\)`", "`training_step` calls `requires_grad_()` on a tensor; `torch.func.grad` is stacked"),
    (r"accessing `data` under vmap", "`training_step` writes to a parameter's `.data`"),
    (r"Dynamo does not support RNN", "`nn.LSTM`, `nn.GRU` and `nn.RNN` compute one model at a time"),
    (r"does not have vmap support", "`training_step` uses an `autograd.Function`, which is captured for one model"),
    (r"support running with fake tensors", "`training_step` calls an operation that cannot be captured"),
    (r"there exists a Tensor `other` in extra_args|doesn't match the broadcast shape", _OVERWRITES),
    (r"do not yet support aten::(\w+)", r"`\1` computes one model at a time"),
    (
        r"found no exception handler(?s:.*)raised exception (\w+)\(\[ConstantVariable\(str: '([^']*)'\)",
        r"`training_step` raises \1: \2",
    ),
    (r"found no exception handler(?s:.*)raised exception (\w+)", r"`training_step` raises \1"),
    (r"`torch.nn.Parameter\(\)` constructor", "`training_step` makes a module or a parameter; make it in `__init__`"),
    (r"called random operation while in", "`training_step` draws by an operation that computes one model at a time"),
    (r"not supported on type OrderedDict", "`training_step` calls `state_dict()`, which cannot be captured"),
    (r"builtin operator `open`", "`training_step` opens a file, which a stack would do once for all clients"),
    (r"`RLock`|get_ident", _LOCKS),
    (r"`torch.compiler.disable`", "`training_step` calls a function that is kept from being captured"),
    (r"trace method `(\w+)` of class `(\w+)`", r"`training_step` calls `\1` of `\2`, which cannot be captured"),
    (r"trace the (?:Python )?builtin `([\w.]+?)\.?`", r"`training_step` calls `\1`, which cannot be captured"),
    (r"trace builtin operator `([\w.]+)`", r"`training_step` calls `\1` of something that cannot be captured"),
    (r"intentionally marked that the function `([\w.]+)`", r"`training_step` calls `\1`, which cannot be captured"),
    (r"LoggingLogger", "`training_step` writes to Python's `logging`, which a stack would do once for all clients"),
    # A mistake, say: a client that trains alone raises it.
    (r"failed to run FX node with fake tensors: .*: got (\w+)\(['\"](.*)['\"]\)", r"`training_step` raises \1: \2"),
    # What the library says itself.
    (r"Message: (.*)", r"\1"),
)


@contextmanager
def errors_of_step() -> Iterator[None]:
    """Raise ``CannotVectorize`` for any error of the user's step, which raises it again alone if it is a mistake."""
    try:
        yield
    except Exception as error:
        raise CannotVectorize(cause_of(error)) from error


def cause_of(error: Exception) -> str:
    """Return why a step cannot be captured or stacked, in one line, with the user's file and line."""
    if isinstance(error, CannotVectorize):
        return str(error)
    if _HIDES_ANOTHER.search(str(error)) and isinstance(error.__context__, Exception):
        return cause_of(error.__context__)
    message, *code = _BEFORE_CODE.split(str(error))
    cause = _meaning(message, error)
    place = _place_in(code[-1]) if code else None
    return cause if place is None else f"{cause} ({place})"


def _meaning(message: str, error: Exception) -> str:
    for pattern, words in _CAUSES:
        found = re.search(pattern, message)
        if found is not None:
            return found.expand(words)
    effects = effects_of(error)
    if effects:
        return changes(sorted(map(readable, effects)))
    explained = re.search(r"Explanation: (.+)", message)
    reason = explained[1].strip().rstrip(".") if explained else describe_error(error)
    return f"a step cannot be stacked: {reason}"


def _place_in(code: str) -> str | None:
    """Return the last place that is the user's, or that of a package; ``None`` if there is none."""
    found: list[tuple[str, str]] = re.findall(r'File "([^"]+)", line (\d+)', code)
    places = [place for place in found if not place[0].startswith(_OWN)]
    of_user = [place for place in places if not place[0].startswith(_INSTALLED)]
    if not places:
        return None
    file, line = (of_user or places)[-1]
    return f"{Path(file).name}, line {line}"


def effects_of(error: Exception) -> list[str]:
    """Return what a step changes beside its tensors, as Dynamo names it; nothing if another error was raised."""
    found = _EFFECTS.search(str(error))
    return [] if found is None else ast.literal_eval(found[1])


def changes(names: Sequence[str]) -> str:
    """Return the cause where a step changes things of these names."""
    held = ", ".join(f"`{name}`" for name in names)
    return f"`training_step` changes {held}, of which there is one for all clients"


#: How Dynamo names things, as a pattern, and how users do.
_NAMES = (
    (r"L\['module'\]", "self"),
    (r"L\['arguments'\]\[0\]", "optimizer"),
    (r"G\['([^']+)'\]", r"\1"),
    (r"\._(?:modules|parameters)\['(\w+)'\]", r".\1"),
    (r"self\._trainer(\._read_by_step)?", "self.trainer"),
    (r"trainer\._accelerator_connector\.strategy\._optimizers", "trainer.optimizers"),
    (r"dict\(type\(self\)\.__dict__\)\['(\w+)'\]", r"type(self).\1"),
)


def readable(source: str) -> str:
    """Return the name that a user gives to what Dynamo names so."""
    name = source
    for pattern, words in _NAMES:
        name = re.sub(pattern, words, name)
    return re.sub(r"__import_(\w+)", lambda found: found[1].replace("_dot_", "."), name)
