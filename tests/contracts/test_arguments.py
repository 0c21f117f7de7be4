"""Arguments of public constructors: each has a kind, and an error about a wrong value names the argument.

Types, with their limits, say what most arguments are. The tables of this file say the rest, by the argument's name, or
by class and argument. A new class needs a line here only for arguments of new names.
"""

from __future__ import annotations

import collections.abc
import inspect
import math
import os
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from helpers.written import assert_as_in, told
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fl_lightning as fl
from fl_lightning import partitioners, parts
from fl_lightning.data import Backdoor, ClassArrival, ClientSplit
from fl_lightning.datamodules import CovertypeDataModule, OrderedSplit
from fl_lightning.executors import SequentialExecutor, make_executor
from fl_lightning.metrics import OneVsRestAUROC
from fl_lightning.models import MobileNetV2Classifier, ResNet18Classifier, VGG9Classifier
from fl_lightning.models.frozen import FrozenPrefix
from fl_lightning.partitioners import IIDPartitioner, Partition, TopicGraph
from fl_lightning.signatures import arguments
from fl_lightning.words import short_repr

# ---- kinds ----


@dataclass(frozen=True, eq=False)
class Kind:
    """Values that mean something, and values that do not."""

    right: tuple[Any, ...]
    wrong: tuple[Any, ...]


NAN, INF = math.nan, math.inf
NO_NUMBER = (True, np.True_, "1", b"1", [1], {}, 1j, np.array(1), torch.tensor(1), object())


def whole(low: int) -> Kind:
    """A whole number of at least ``low``."""
    wrong = (low - 1, -(10**20), low + 0.5, low + 1.0, 5e-324, NAN, INF, *NO_NUMBER)
    return Kind((low + 2, low, np.int64(low + 1)), wrong)


def real(within: str) -> Kind:
    """A number in an interval; where that has no end, a finite one."""
    low, high = (float(end) for end in within[1:-1].split(","))
    middle = 0.5 if low < 0.5 < high else low + 1
    right, wrong = [middle, np.float32(middle)], [NAN, INF, -INF]
    if math.isfinite(low):
        closed = within[0] == "["
        right.append(low if closed else math.nextafter(low, INF))
        wrong += [math.nextafter(low, -INF) if closed else int(low), low - 1, -1e300]
    if math.isfinite(high):
        closed = within[-1] == "]"
        right.append(high if closed else math.nextafter(high, -INF))
        wrong += [math.nextafter(high, INF) if closed else int(high), high + 1, 1e300]
    return Kind(tuple(right), (*wrong, *NO_NUMBER))


def scheduled(kind: Kind) -> Kind:
    """A number, or a function that gives one for a round."""
    good = kind.right[0]
    return replace(kind, right=(*kind.right, lambda t: good))


def choice(*values: Any) -> Kind:
    """One of some values."""
    return Kind(values, ("", "zzz", f"{values[0]} ", 0, 3, True, 0.25, b"x", [values[0]], object()))


def only(*right: Any, wrong: Sequence[Any] = ()) -> Kind:
    """An argument of a kind of its own."""
    return Kind(right, (*wrong, object(), np.True_, b"x"))


FUNCTION = Kind((lambda *_: 1.0,), (0, 0.5, "x", b"x", [len], {}, object()))
FLAG = Kind((True, False, np.True_), (0, 1, 1.0, "yes", [True], torch.tensor(True), object()))
TEXT = Kind(("abc",), ("", 3, True, b"x", ["a"], {}, Path("a"), object()))
PATH = Kind(("some/where", Path("some/where")), ("", 0, 1.5, True, b"x", ["a"], {}, object()))
TEXTS = Kind((["a"], ("a", "b")), ("a", 3, 0.5, [1], [None], object()))
COUNT, INDEX, POSITIVE, NOT_NEGATIVE = whole(1), whole(0), real("(0, inf)"), real("[0, inf)")
SHARE, PART, FINITE = real("[0, 1)"), real("(0, 1]"), real("(-inf, inf)")
ABOVE_ONE = Kind((2, 1.5, np.float32(1.5)), (1, 1.0, 0.5, -2, NAN, *NO_NUMBER))

# ---- what hints do not say ----


class Loads:
    """What a partitioner of flwr-datasets has."""

    def load_partition(self, partition_id: int) -> None: ...


X, Y = torch.arange(120.0).view(40, 3), torch.arange(40) % 4
DATASET = TensorDataset(X, Y)
PARTITION = Partition((np.arange(5), np.arange(5, 9)))
GRAPH = TopicGraph(("Top/A", "Top/B"), np.array([[0, 1]]))
CLIENTS = Kind(
    (3, 1, np.int64(3), 0.5, 1.0, np.float32(0.5)),
    (0, -1, 0.0, math.nextafter(1.0, 2.0), 1.5, -0.5, NAN, INF, *NO_NUMBER),
)
SETS = only([DATASET], [(X, Y)], wrong=(3, "x", DATASET, [DATASET, 3], None))

#: The kind of numbers by their names where the type has no limits; a whole number is a count where nothing is said.
OF_NUMBERS: dict[Kind, str] = {
    INDEX: "seed",
    POSITIVE: "ExamplePrivacy.clip VirtualClock.work",
    NOT_NEGATIVE: "VirtualClock.jitter add_feature_noise.level ExamplePrivacy.noise_multiplier",
    SHARE: "VirtualClock.dropout ImportanceSampler.gamma",
    replace(SHARE, right=(0.5, np.float32(0.5), 0.0, 0.1)): "test val",
    PART: "ImportanceSampler.floor",
    real("(0, 1)"): "ExamplePrivacy.delta",
    replace(FINITE, right=(2.0, -1.0), wrong=(0, NAN, INF, *NO_NUMBER)): "baseline",
    ABOVE_ONE: "burn_in_stop",
    CLIENTS: "clients_per_round clients_per_group",
}
#: Arguments of kinds of their own, by their names.
KINDS: dict[str, Kind] = {
    "LimitedClassesPartitioner.num_clients": replace(whole(2), wrong=(0, -1, 1.5, NAN, *NO_NUMBER)),
    "DifferentialPrivacy.noise_multiplier": replace(NOT_NEGATIVE, wrong=(*NOT_NEGATIVE.wrong, None)),
    "named.feature_partitioner": replace(FUNCTION, right=(None,)),
    "Algorithm.exchange": only(fl.Clip(1.0), [fl.Clip(1.0)], wrong=(3, parts.Mixing())),
    "Algorithm.schedule": only(parts.Synchronous(), wrong=(3, parts.Mixing())),
    "DifferentialPrivacy.clip": POSITIVE,
    "DifferentialPrivacy.epsilon": only(None, wrong=(1.0, 0, -1.0)),
    "RADFed.local HierFAVG.local": only(fl.Proximal(0.1), None, wrong=(3, "x", fl.Proximal)),
    "Contribution.path": only(None, "a.csv", "a.png", wrong=(3, "", [])),
    "Timeline.path": only(None, "a.png", wrong=(3, "", [])),
    "MobileNetV2Classifier.image_size": replace(COUNT, right=(None, 64)),
    "ShakespeareDataModule.split": only(ClientSplit(), OrderedSplit(), None, wrong=(3, "x", ClientSplit)),
    "CropSplit.test": COUNT,
    "assignment": only([[0], [1]], {0: [0], 1: [1]}, PARTITION, wrong=(None, 5, [0, 1], {1: [0], "a": [1]})),
    "Attack.clients": only(0.5, np.float32(0.5), [0, 2], wrong=(1.5, -0.5, NAN, "x", [0.5], [True], None)),
    "Poison.clients": only([0, 2], np.arange(3), [0, 0], wrong=(0.5, 3, "x", [0.5], [True, False], None)),
    "FlowerPartitioner.partitioner": only(Loads(), wrong=(3, None, IIDPartitioner(5))),
    "BackdoorSuccess.backdoor": only(Backdoor([0]), wrong=(3, None)),
    "CovertypeDataModule.class_counts": only((5, 6), None, wrong=(5, (5,), (5, -1), "ab")),
    "ClientDatasetsModule.clients": SETS,
    "TensorDataModule.clients": only([(X, Y)], wrong=(X, (X, Y), {"a": (X, Y)}, [(X, Y.numpy())], [], None)),
    "TensorDataModule.val TensorDataModule.test": only((X, Y), [(X, Y)], None, wrong=(X, 3, "x", {})),
    "ClientDatasetsModule.val ClientDatasetsModule.test": only(DATASET, [DATASET], None, wrong=(3, {})),
    "Source.clients TorchDatasetDataModule.clients": only(np.arange(40), None, wrong=(3, [None] * 40, [NAN] * 40)),
    "dataset": only(DATASET, wrong=({1, 2}, 3, None, DataLoader(DATASET))),
    "test_dataset": only(DATASET, None, wrong=(3, DataLoader(DATASET))),
    "targets": only(Y, Y.tolist(), None, wrong=(3, "x")),
    "test_targets": only(None, wrong=(Y, 3)),
    "counts": only([[1, 2]], np.ones((2, 2)), wrong=(3, None, "ab", [[1.0, NAN]], [1, 2])),
    "data_files": only("x", ["x"], {"train": "x"}, None, wrong=(3, 0.5)),
    "delay": only(0, 2.5, [0.5, 1], np.arange(3), wrong=(-1, NAN, INF, "x", [-1.0], None)),
    "edges": only([], np.array([[0, 1]]), wrong=(3, None, [0, 1, 1], [["x", "y"]], [[0, 2]])),
    "exchange": only(
        fl.Clip(1.0), [], [fl.Clip(1.0), fl.PersonalParameters("x")], None, wrong=(3, "x", fl.Clip, [3], parts.Median())
    ),
    "extend_cycle": replace(FLAG, right=(False,)),
    "groups": only(3, np.int64(2), [[0, 2], [1]], wrong=(0, 1.5, NAN, "x", None, True, [0, 1], [[0.5]], [[-1]])),
    "hidden": only((), (4,), np.array([3]), wrong=(3, "ab", [0], [-1], [0.5], [None], None)),
    "channels": only((), (4,), wrong=(3, "ab", [0], [0.5], None)),
    "image_size": only(16, np.int64(16), wrong=(0, -1, 1.5, NAN, "x", True, 3)),
    "indices": only([[0], [1]], wrong=(3, None, "ab", [0, 1], [[0], [0]], [[-1]], [[0.5]])),
    "inputs": only("a", ["a", "b"], wrong=(5, [], [""], [None], None)),
    "CIFAR100DataModule.labels": choice("fine", "coarse"),
    "labels": only(np.arange(40) % 4, None, wrong=(3, "x", [[1]])),
    "label_counts.labels": only(np.arange(40) % 4, wrong=(3, "x", [[1]], None)),
    "layers": only(nn.Identity(), wrong=(3, None, nn.Identity)),
    "limited_clients": only([1], np.array([0]), wrong=(0, None, "a", [0.5], [9], [-1], [0, 0], [], [True])),
    "mean": only([0.5] * 3, None, wrong=(0.5, ["a"] * 3, [NAN] * 3)),
    "CIFAR10DataModule.std": only([0.5] * 3, None, wrong=(0.5, ["a"] * 3, [NAN] * 3, [0.0] * 3)),
    "HuggingFaceDataModule.std": only([0.5], wrong=(0.5, ["a"], [NAN], [0.0], None)),
    "HuggingFaceDataModule.mean": only([0.5], wrong=(0.5, ["a"], [NAN], None)),
    "metrics": only(("acc",), ["f1"], wrong=("acc", ["x"], 3, None)),
    "one_class": only(1, NAN, np.float32(0.5), wrong=("x", None)),
    "online": only(
        {}, {0: [(0, 1.5)]}, None, wrong=([(0, 1)], {"a": [(0, 1)]}, {0: [(0, NAN)]}, {0: (0, 1)}, {-1: []})
    ),
    "module": only(nn.Linear(2, 2), wrong=(3, None, nn.Linear)),
    "loader": only(DataLoader(DATASET), wrong=(3, None, DATASET, [X])),
    "mixed pattern": only("head", ["a"], wrong=(3, "", [""], None)),
    "personal_parameters": only(fl.PersonalParameters("x"), wrong=(3, "x", None)),
    "schedule": only(parts.Synchronous(), parts.Asynchronous(fl.VirtualClock(10)), None, wrong=(3, parts.Mixing())),
    "bandwidth upload_bandwidth": only(
        None, 1, 0.5, [0.5, 1], np.arange(1, 3), wrong=(0, -1, NAN, INF, "x", [0.0], [-1.0])
    ),
    "shared_links": only(
        [], [parts.SharedLink(3)], (parts.SharedLink(3),), wrong=(3, "x", None, parts.SharedLink(3), [3])
    ),
    "SharedLink.clients": only([1], np.array([0]), None, wrong=(0, "a", [0.5], [-1], [0, 0], [], [True])),
    "speeds": only(
        10, 0.5, [1.0, 2.0], lambda n, rng: [1.0] * n, wrong=(0, -1, NAN, "x", [0.0], [NAN], torch.tensor(1.0))
    ),
    "test_indices": only(np.arange(3), [0], None, wrong=(3, "x", [0.5], [True, False])),
    "topics": only(("Top/A", "Top/B"), ["a", "b"], wrong=("ab", (), ("a", "a"), 3, None, [1, 2])),
    "credits": only(3, [3, 1], None, wrong=(0, "x", [0], 1.5)),
    "FedDF.buffers": choice("average", "server"),
    "FedDF.exchange FedMD.exchange": only(
        fl.Clip(1.0), [], [fl.Clip(1.0)], None, wrong=(3, "x", fl.Clip, [3], parts.Median())
    ),
    "PublicConsensus.personal_parameters": only(fl.PersonalParameters("*"), wrong=(3, "x", None)),
    "FedDF.optimizer EnsembleDistillation.optimizer FedMD.optimizer PublicConsensus.optimizer": only(
        torch.optim.SGD, wrong=(3, "Adam", None)
    ),
    "TorchServer.optimizer": only(torch.optim.AdamW, wrong=(3, "AdamW", None)),
    "trim": only(0, 2, np.int64(1), 0.25, wrong=(-1, 0.5, NAN, "x", None, True, torch.tensor(1))),
    "widths": only([1.0, 0.5], (1,), np.array([0.5]), wrong=(0.5, "a", [], [0.0], [1.5], [NAN], [None], None)),
    "AdapterRanks.ranks": only([2, 1], np.array([4]), wrong=(2, "a", [], [0], [1.5], [None], None)),
    "FedLoRA.ranks": only([2, 1], np.array([4]), None, wrong=(2, "a", [], [0], [1.5], [None])),
    "messages": only(parts.StackMessages(), wrong=(3, "x", None, parts.StackMessages)),
    "AdapterMean.ranks StackMessages.ranks": only(
        parts.AdapterRanks([1]), None, wrong=(3, "x", parts.SubModels([0.5]))
    ),
    "HeteroFL.hidden SubModels.hidden": only({"a": 0}, {}, None, wrong=(3, "a", ["a"])),
    "FedBN.pattern HeteroFL.inputs FjORD.inputs SubModels.inputs frozen outputs whole": only(
        "head", ["a"], None, wrong=(3, "", [""])
    ),
    "HolderMean.partial HeldGradients.partial OrderedDropout.partial": only(
        parts.SubModels([0.5]), wrong=(3, "x", None, parts.SubModels, fl.Clip(1.0))
    ),
    "val_fold": replace(COUNT, right=(1, np.int64(3), None)),
    "values": only([1.0, 2.0], np.arange(3), wrong=(3, "x", [NAN], [[1.0]], None)),
    "x": only(X, wrong=(3, None, X.numpy())),
}
OTHERS = {name: kind for names, kind in KINDS.items() for name in names.split()}
#: What else is given, where the one argument alone means nothing or takes long.
GIVEN: dict[str, dict[str, Any]] = {
    "DifferentialPrivacy": {"noise_multiplier": 1.0},
    "VirtualClock": {"bandwidth": 1.0},
    "ImageDataModule": {"augment": True},
    "MobileNetV2Classifier": {"weights": None},
    "ConvNetClassifier": {"channels": (2,)},
    "CharLSTM": {"hidden_size": 4, "num_layers": 1},
    "LimitedClassesPartitioner": {"num_clients": 4},
}
#: Arguments that a class refuses, with every value but their default: they belong to a relative of it.
REFUSED = {
    **{"APFL": "optimizer_state", "DiLoCo": "local_epochs", "RADFed": "participation"},
    **dict.fromkeys(("QFedAvg", "IFCA", "HeteroFL", "FjORD"), "aggregation"),
}
#: An object for each class that arguments are of.
OBJECTS = (
    fl.Participation(dropout=0.1), fl.UniformSampler(2), parts.Median(), parts.Momentum(0.9), fl.Proximal(0.1),
    fl.Clip(1.0), parts.Bucketing(), fl.VirtualClock(10), fl.SampleSplit(), SequentialExecutor(), ClassArrival(2),
    parts.DynamicRegularizer(0.1), parts.MeasuredLoss(), parts.SharedMomentum(), PARTITION, GRAPH,
)  # fmt: skip


def kind_of(owners: Sequence[str], argument: str, hint: Any) -> Kind:
    """Return the kind of an argument of a class; ``owners`` are its name and its bases'."""
    keys = [*(f"{owner}.{argument}" for owner in owners), argument]
    for key in keys:
        if key in OTHERS:
            return OTHERS[key]
    types_of = parts_of(hint)
    choices = [value for kind in types_of for value in typing.get_args(kind) if typing.get_origin(kind) is Literal]
    function = any(typing.get_origin(kind) is collections.abc.Callable for kind in types_of)
    limits = [typing.get_args(kind) for kind in types_of if typing.get_origin(kind) is Annotated]
    if limits or int in types_of or float in types_of:
        names = {name: kind for kind, text in OF_NUMBERS.items() for name in text.split()}
        declared = [whole(int(within[1:].split(",")[0])) if of is int else real(within) for of, within in limits]
        found = next((names[key] for key in keys if key in names), declared[0] if declared else COUNT)
        kind = replace(found, right=(*found.right, *choices))
        kind = scheduled(kind) if function else kind
    elif choices:
        kind = choice(*choices)
        if function:
            kind = replace(kind, right=(*choices, lambda d: 1.0), wrong=(*kind.wrong, lambda d: 0.0))
        kind = replace(kind, right=(*kind.right, *(o for o in OBJECTS for t in types_of if is_a(o, t))))
    elif function:
        kind = FUNCTION
    elif bool in types_of:
        kind = FLAG
    elif os.PathLike in types_of or Path in types_of or any(typing.get_origin(t) is os.PathLike for t in types_of):
        kind = PATH
    elif str in types_of:
        kind = TEXT
    elif collections.abc.Sequence[str] in types_of:
        kind = TEXTS
    else:
        right = [value for value in OBJECTS for kind in types_of if is_a(value, kind)]
        assert right, f"say in OTHERS what `{argument}` of {owners[0]} takes: {hint}"
        kind = Kind(tuple(right), (3, 0.5, "x", {1: 2}, [None], object(), type(right[0])))
    if type(None) in types_of:
        return replace(kind, right=(*kind.right, None))
    return replace(kind, wrong=(*kind.wrong, None))


def parts_of(hint: Any) -> list[Any]:
    """Return the types of a union, or the one type."""
    return list(typing.get_args(hint)) if typing.get_origin(hint) in (typing.Union, types.UnionType) else [hint]


def is_a(value: object, kind: Any) -> bool:
    return inspect.isclass(kind) and kind is not Any and isinstance(value, kind)


# ---- what has arguments ----

ROOMS = ("", ".parts", ".partitioners", ".data", ".models", ".diagnostics", ".callbacks", ".executors")
#: Made by the library, or of Lightning's.
MADE_BY_THE_LIBRARY = """ArrivalRecord AsynchronousAlgorithm CannotVectorize ChangedLoss Classifier ClientResult
    ClientVectors FeatureQPSolution FederatedLoop FederatedSplit Federation LabelPlot Layout Part PartitionStatistics
    Payload Preprocessing QPSolution Round RoundReport Run RunningMean Server SynchronousAlgorithm Task Term Traffic
    Updates Upload"""
#: Keep plain numbers, which checkpoints hold.
PLAIN = (fl.AggregationCallback, parts.Part, partitioners.Partitioner)
#: Take long to make.
LARGE = (MobileNetV2Classifier, ResNet18Classifier, VGG9Classifier)
FUNCTIONS: tuple[Callable[..., Any], ...] = (
    CovertypeDataModule.named, OneVsRestAUROC, FrozenPrefix, make_executor, parts.polynomial,
    parts.hinge, parts.exponential, partitioners.add_feature_noise, partitioners.c_score,
    partitioners.device_experiment_partitioner, partitioners.label_counts, partitioners.label_entropy,
    partitioners.partition_statistics, partitioners.quantile_buckets,
)  # fmt: skip


def makers() -> Iterator[Callable[..., Any]]:
    """Yield all public classes that users make, and some functions."""
    seen = set()
    for package in [*(f"fl_lightning{room}" for room in ROOMS), "fl_lightning.datamodules"]:
        for name in import_module(package).__all__:
            made = getattr(import_module(package), name)
            usual = inspect.isclass(made) and not inspect.isabstract(made) and not getattr(made, "_is_protocol", False)
            if usual and made not in seen and name not in MADE_BY_THE_LIBRARY.split():
                seen.add(made)
                yield made
    yield from FUNCTIONS


def arguments_of(make: Callable[..., Any]) -> dict[str, Kind]:
    """Return the kind of each argument that our classes and functions declare."""
    shown = inspect.signature(make).parameters
    bases = [base for base in inspect.getmro(make) if is_ours(base)] if inspect.isclass(make) else [make]
    hints: dict[str, Any] = {}
    for base in reversed(bases):
        hints |= typing.get_type_hints(
            vars(base).get("__init__", object) if inspect.isclass(base) else base, include_extras=True
        )
    owners = [base.__name__ for base in bases]
    kinds = {}
    for name in shown.keys() & hints.keys():
        if shown[name].kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            continue
        kinds[name] = kind_of(owners, name, hints[name])
        if name in next((REFUSED[owner] for owner in owners if owner in REFUSED), "").split():
            others = [value for value in kinds[name].right if value != shown[name].default]
            kinds[name] = Kind((shown[name].default,), (*kinds[name].wrong, *others))
    return dict(sorted(kinds.items()))


EMPTY = inspect.Parameter.empty


def is_ours(cls: type) -> bool:
    return cls.__module__.split(".")[0] == "fl_lightning"


def needed_by(make: Callable[..., Any], kinds: dict[str, Kind]) -> dict[str, Any]:
    shown = inspect.signature(make).parameters
    needed = {name: kind.right[0] for name, kind in kinds.items() if shown[name].default is EMPTY and kind.right}
    for owner in reversed(inspect.getmro(make) if inspect.isclass(make) else ()):
        needed |= GIVEN.get(owner.__name__, {})
    return needed


def refusal(call: Callable[[], Any], argument: str, *value: object) -> str:
    """Return what is wrong with how a call refuses an argument's value; an empty text if nothing is."""
    try:
        repr(call())
    except (TypeError, ValueError) as error:
        message = str(error)
        if not any(f"`{argument}{end}" in message for end in "`[(="):
            return f"not named in {error!r}"
        return "" if all(is_shown(each, message) for each in value) else f"not shown in {error!r}"
    except Exception as error:
        return repr(error)
    return "accepted"


def is_shown(value: object, message: str) -> bool:
    """Whether a message that says what it got shows a number, a text or ``None``, if only by an array's shape."""
    if "got " not in message or not isinstance(value, int | float | complex | str | bytes | np.generic | None):
        return True
    shown = (short_repr(value), repr(value), str(value), type(value).__name__, " shape ")
    return any(text in message for text in shown)


def shown_by_fedavg(make: Callable[..., Any]) -> set[str]:
    """Return the arguments that an algorithm has from the base of all, and that go the way which FedAvg's go."""
    if make is fl.FedAvg or not (inspect.isclass(make) and issubclass(make, fl.AggregationCallback)):
        return set()
    own = [vars(base).get("__annotations__", {}) for base in make.__mro__[: make.__mro__.index(fl.AggregationCallback)]]
    common = {each.name for each in fields(fl.AggregationCallback)}
    return common.difference(*own, REFUSED.get(make.__name__, "").split())


#: Arguments that are kept in another form: whole paths, lists of one, clients once each.
CHANGED = {"FederatedCheckpoint.dirpath", "FederatedCheckpoint.save_last", "HuggingFaceDataModule.inputs"}
CHANGED |= {"TorchDatasetDataModule.targets", "Backdoor.clients", "LabelFlipping.clients"}


def is_kept(made: Any, name: str, value: object) -> bool:
    """Whether the attribute of an argument, if there is one, has its value; ``None`` may stand for another one."""
    if value is None or f"{type(made).__name__}.{name}" in CHANGED:
        return True
    kept = arguments(made).get(name, value)
    return kept is value or bool(plain(kept) == plain(value))


def plain(value: Any) -> Any:
    """Return numbers and paths as Python's, and what is in a row as a list."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic | np.ndarray | torch.Tensor):
        return value.tolist()
    return str(value) if isinstance(value, Path) else value


@pytest.mark.parametrize("make", makers(), ids=lambda make: make.__qualname__)
def test_arguments(make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kinds = arguments_of(make)
    needed = needed_by(make, kinds)
    problems = set()
    for name in shown_by_fedavg(make):
        kinds.pop(name, None)
    for name, kind in kinds.items():
        for value in () if make in LARGE else kind.right:
            made = list[Any]()
            problem = refusal(lambda: made.append(make(**{**needed, name: value})) or made[0], name)  # type: ignore[func-returns-value] # noqa: B023
            if problem != "accepted":
                problems.add(f"{name}={value!r} is right, but: {problem or 'refused'}")
            elif inspect.isclass(make) and not is_kept(made[0], name, value):
                problems.add(f"{name}={value!r} is right, but not kept")
            elif isinstance(value, np.number) and inspect.isclass(make) and issubclass(make, PLAIN):
                alike = repr(make(**{**needed, name: value})) == repr(make(**{**needed, name: value.item()}))
                problems |= set() if alike else {f"{name}={value!r} is not shown as Python's number"}
        for value in kind.wrong:
            if problem := refusal(lambda: make(**{**needed, name: value}), name, value):  # noqa: B023
                problems.add(f"{name}={value!r}: {problem}")
    assert not problems, "\n".join(sorted(problems)[:20])


def wrong_values() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls with a wrong value of one argument, and what they are."""
    for make in makers():
        kinds = arguments_of(make)
        needed = needed_by(make, kinds)
        for name in kinds.keys() - shown_by_fedavg(make):
            for value in kinds[name].wrong[:3]:
                yield f"{make.__qualname__}({name}={short_repr(value)})", partial(make, **{**needed, name: value})


def test_errors_say_what_an_argument_may_be(tmp_path: Path) -> None:
    said = {call: told(make, tmp_path) for call, make in wrong_values()}
    # One line for each text but for the value that it shows.
    texts = {(call.split("=")[0], text.split(", got ")[0]): f"{call}: {text}" for call, text in reversed(said.items())}
    assert_as_in(Path(__file__).with_name("wrong_values.txt"), sorted(texts.values()), tmp_path)
