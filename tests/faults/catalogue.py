"""Every public constructor of what trains and measures, with the values that mean something to each argument."""

from __future__ import annotations

from typing import Any

from faults.what_travels import TRAVELS
from helpers.wrong_values import CALLABLE, KINDS, VALUES, Makers
from torch import nn

from fl_lightning import (
    BernoulliSampler,
    ClientMetrics,
    Clip,
    DynamicWeightFedBuff,
    FedAdagrad,
    FedAdam,
    FedAsync,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedDyn,
    Federated,
    FederatedCheckpoint,
    FedNova,
    FedProx,
    FedYogi,
    FrozenPrefixCache,
    ImportanceSampler,
    Participation,
    PersonalParameters,
    Proximal,
    QFedAvg,
    RADFed,
    Scaffold,
    UniformSampler,
    VirtualClock,
)
from fl_lightning.diagnostics import (
    Communication,
    LocalAccuracy,
    LocalDivergence,
    Timeline,
    VirtualTime,
)
from fl_lightning.executors import AutoExecutor, VectorizedExecutor, make_executor
from fl_lightning.metrics import OneVsRestAUROC
from fl_lightning.models import (
    CharLSTM,
    ConvNetClassifier,
    LogisticRegressionClassifier,
    MLPClassifier,
    VGG9Classifier,
)
from fl_lightning.models.frozen import FrozenPrefix
from fl_lightning.parts import (
    Adaptive,
    Asynchronous,
    BufferExchange,
    ControlVariates,
    CurrentMean,
    DynamicRegularizer,
    DynamicServer,
    DynamicWeightMean,
    Median,
    Mixing,
    Momentum,
    Redistribution,
    SampledStaleness,
    StaleMean,
    StalenessMixing,
    StalenessWeightedDeltas,
    Synchronous,
    WeightedMean,
)
from fl_lightning.parts.asynchronous import calibrate_staleness, exponential, hinge, polynomial

OBJECTS: dict[str, Any] = {
    **VALUES,
    "10**400": 10**400,
    "schedule": lambda round_index: 0.5 ** (round_index + 1),
    "sampler": UniformSampler(2),
    "sampler class": UniformSampler,
    "rounds": Synchronous(),
    "virtual time": Asynchronous(VirtualClock()),
    "objective": Proximal(0.1),
    "regularizer": DynamicRegularizer(0.1),
    "exchange": Clip(1.0),
    "exchanges": [Clip(1.0), PersonalParameters("head")],
    "aggregation": Median(),
    "server": Momentum(0.9),
    "participation": Participation(dropout=0.1),
    "clock": VirtualClock(10),
    "module": nn.Identity(),
}
FUNCTIONS = CALLABLE | {"schedule", "sampler class", "module"}
ACCEPTED: dict[str, set[str]] = {
    **KINDS,
    "count": KINDS["count"] | {"10**400"},
    "count or 0": KINDS["count or 0"] | {"10**400"},
    "clients": {"3", "np.int64(3)", "10**30", "10**400", "0.5", "np.float32(0.5)"},
    "share up to 1": {"0.5", "np.float32(0.5)"},
    "unit": {"0", "0.5", "np.float32(0.5)"},
    "positive schedule": KINDS["positive"] | {"schedule"},
    "schedule": KINDS["not negative"] | {"schedule", "module"},  # the identity of round 0 is 0
    "share schedule": KINDS["share"] | {"schedule", "module"},
    "mixing": {"0.5", "np.float32(0.5)", "schedule"},
    "weight of staleness": {"schedule"},
    "availability": {"0.5", "np.float32(0.5)"} | FUNCTIONS,
    "function": FUNCTIONS,
    "sampler": {"sampler"},
    "rounds": {"rounds", "virtual time"},
    "objective": {"objective", "regularizer"},
    "regularizer": {"regularizer"},
    "exchange": {"[]", "exchange", "exchanges"},
    "aggregation": {"aggregation"},
    "server": {"server"},
    "participation": {"participation"},
    "clock": {"clock"},
    "module": {"module"},
    "speeds": KINDS["positive"] | {"[0.5]"} | FUNCTIONS,
    "work": KINDS["positive"],
    "delay": KINDS["not negative"] | {"[0.5]", "numbers"},
    "windows": {"{}"},
    "option": set(),
    "widths": {"[]"},
    "metrics": {"[]"},
}

RUN = {
    "local_epochs": "count?",
    "local_steps": "count?",
    "buffers": "choice",
    "invalid_updates": "choice",
    "max_invalid_rounds": "count?",
    "state_dir": "path?",
    "executor": "choice",
    "clients_at_once": "count?",
    "seed": "count or 0?",
    "clients_per_round": "clients?",
    "exchange": "exchange?",
    "aggregation": "aggregation?",
    "participation": "participation?",
    "sampler": "sampler?",
}
#: Asynchronous algorithms draw no clients themselves.
TIMED = {**RUN, "participation": "choice?", "sampler": "choice?"} | {
    "speeds": "speeds?",
    "clock": "clock?",
    "concurrency": "count?",
    "lookahead": "count?",
}
AVERAGING = {
    **RUN,
    "weighting": "choice",
    "partial": "choice",
    "server_lr": "positive schedule",
    "evaluate": "choice",
}
ADAPTIVE = {**AVERAGING, "beta1": "share", "tau": "positive", "v0": "not negative", "bias_correction": "bool"}
CLASSIFIER = {
    "num_classes": "count",
    "lr": "not negative",
    "momentum": "not negative",
    "weight_decay": "not negative",
    "metrics": "metrics",
}
SCHEDULE = {
    "buffer_size": "count",
    "concurrency": "count?",
    "stamp": "choice",
    "wait_for_flush": "bool",
    "flush_rounds": "bool",
    "max_staleness": "count or 0?",
    "once_per_buffer": "bool",
    "broadcast_threshold": "positive?",
    "lookahead": "count?",
}

MAKERS: Makers = {
    # what makes it: arguments that are right, and the kind of each of its own
    FedAvg: ({}, AVERAGING),
    FedProx: ({"mu": 0.1}, {**AVERAGING, "mu": "schedule"}),
    FedAvgM: ({}, {**AVERAGING, "momentum": "share schedule"}),
    FedAdagrad: ({}, ADAPTIVE),
    FedAdam: ({}, {**ADAPTIVE, "beta2": "share"}),
    FedYogi: ({}, {**ADAPTIVE, "beta2": "share"}),
    FedDyn: ({}, {**RUN, "alpha": "positive", "scale_alpha": "choice", "evaluate": "choice", "penalty": "choice"}),
    Scaffold: (
        {},
        {
            **RUN,
            "option": "option",
            "server_lr": "positive schedule",
            "momentum": "share",
            "weighting": "choice",
            "evaluate": "choice",
        },
    ),
    RADFed: (
        {"redistributions": 3},
        {
            **RUN,
            "redistributions": "count",
            "evaluate": "choice",
            "unequal": "choice",
            "extend_cycle": "false",
            "local": "circulating objective?",
            "server": "server?",
            "participation": "whole participation?",
        },
    ),
    Federated: (
        {},
        {**RUN, "schedule": "rounds?", "objective": "objective?", "server": "server?"},
    ),
    FedAsync: (
        {},
        {
            **TIMED,
            "mixing": "mixing",
            "staleness": "weight of staleness",
            "rho": "schedule",
            "max_staleness": "count or 0?",
            "history": "count?",
        },
    ),
    FedBuff: (
        {},
        {
            **TIMED,
            **{name: kind for name, kind in SCHEDULE.items()},
            "server_lr": "positive schedule?",
            "server": "server?",
            "staleness": "weight of staleness",
            "weighting": "choice",
            "divide_by": "choice",
            "average_staleness": "not negative",
            "mu": "schedule",
        },
    ),
    DynamicWeightFedBuff: (
        {},
        {
            **TIMED,
            "buffer_size": "count",
            "alpha": "share up to 1",
            "mu": "schedule",
            "stamp": "choice",
            "staleness_at": "choice",
            "frequency": "choice",
            "broadcast_threshold": "positive?",
            "max_staleness": "count or 0?",
        },
    ),
    UniformSampler: ({"clients_per_round": 3}, {"clients_per_round": "clients", "rounding": "choice"}),
    BernoulliSampler: ({"probability": 0.5}, {"probability": "share up to 1"}),
    ImportanceSampler: (
        {"clients_per_round": 3},
        {
            "clients_per_round": "clients",
            "gamma": "share?",
            "score": "choice",
            "initial": "choice",
            "parameters": "names?",
            "floor": "share up to 1",
            "rounding": "choice",
        },
    ),
    Participation: (
        {},
        {"available": "availability?", "dropout": "share", "stragglers": "unit", "drop_stragglers": "bool"},
    ),
    Proximal: ({"mu": 0.1}, {"mu": "schedule", "name": "text"}),
    DynamicRegularizer: ({"alpha": 0.1}, {"alpha": "positive", "scale_alpha": "choice", "penalty": "choice"}),
    ControlVariates: ({}, {"option": "option", "momentum": "share"}),
    Clip: ({"norm": 1.0}, {"norm": "positive"}),
    PersonalParameters: ({"pattern": "head"}, {"pattern": "some names"}),
    BufferExchange: ({}, {"buffers": "choice"}),
    WeightedMean: ({}, {"weighting": "choice"}),
    CurrentMean: ({}, {"weighting": "choice"}),
    StaleMean: ({}, {"weighting": "choice"}),
    StalenessMixing: ({}, {"mixing": "mixing", "staleness": "weight of staleness"}),
    StalenessWeightedDeltas: (
        {},
        {
            "staleness": "weight of staleness",
            "weighting": "choice",
            "divide_by": "choice",
            "average_staleness": "not negative",
        },
    ),
    DynamicWeightMean: ({}, {"alpha": "unit", "staleness_at": "choice", "frequency": "choice"}),
    Mixing: ({}, {"lr": "positive schedule", "name": "text"}),
    Momentum: ({}, {"momentum": "share schedule", "lr": "positive schedule", "name": "text"}),
    Adaptive: (
        {"rule": "adam", "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 0.1, "v0": 0.0},
        {
            "rule": "choice",
            "lr": "positive schedule?",
            "beta1": "share?",
            "beta2": "share",
            "tau": "positive",
            "v0": "not negative",
            "bias_correction": "bool",
            "name": "text",
        },
    ),
    DynamicServer: ({"objective": DynamicRegularizer(0.1)}, {"objective": "regularizer"}),
    Synchronous: ({}, {"evaluate": "choice", "weighting": "choice"}),
    Redistribution: (
        {"redistributions": 3},
        {"redistributions": "count", "evaluate": "choice", "unequal": "choice", "extend_cycle": "false"},
    ),
    Asynchronous: ({"clock": VirtualClock()}, {**SCHEDULE, "clock": "clock"}),
    SampledStaleness: (
        {"history": 3},
        {
            **SCHEDULE,
            "history": "count",
            **dict.fromkeys(("clock", "concurrency", "stamp", "wait_for_flush"), "choice"),
        },
    ),
    VirtualClock: (
        {},
        {
            "speeds": "speeds",
            "work": "work",
            "delay": "delay",
            "jitter": "not negative",
            "dropout": "share",
            "online": "windows?",
            "seed": "count or 0?",
        },
    ),
    polynomial: ({}, {"a": "unit"}),
    hinge: ({}, {"a": "positive", "b": "not negative"}),
    exponential: ({}, {"a": "positive"}),
    calibrate_staleness: (
        {"clients_per_round": 3, "arrivals": 10},
        {"clients_per_round": "size", "durations": "durations", "quantile": "open share", "seed": "count or 0"},
    ),
    ClientMetrics: ({}, {"metric": "function", "name": "text"}),
    FederatedCheckpoint: (
        {},
        {
            "dirpath": "path?",
            "filename": "text?",
            "monitor": "text?",
            "save_last": "bool",
            "last_every_n_epochs": "count",
        },
    ),
    FrozenPrefixCache: ({}, {"cache_dir": "path", "batch_size": "size of a tensor"}),
    Communication: ({}, {"target": "finite?", "monitor": "text", "mode": "choice"}),
    LocalAccuracy: ({}, {"metric": "function", "name": "text"}),
    LocalDivergence: ({}, {"of": "choice"}),
    Timeline: ({}, {"path": "choice?"}),
    VirtualTime: ({"clock": VirtualClock()}, {"clock": "clock"}),
    AutoExecutor: ({}, {"clients_at_once": "count?"}),
    VectorizedExecutor: ({}, {"clients_at_once": "count?"}),
    make_executor: ({"executor": "auto"}, {"executor": "choice", "clients_at_once": "count?"}),
    OneVsRestAUROC: ({}, {"average": "choice", "one_class": "any number"}),
    MLPClassifier: (
        {"in_features": 4, "hidden": ()},
        {
            **CLASSIFIER,
            "num_classes": "size of a tensor",
            "in_features": "size of a tensor",
            "hidden": "widths",
            "init": "choice",
        },
    ),
    LogisticRegressionClassifier: (
        {"in_features": 4, "num_classes": 3},
        {
            **CLASSIFIER,
            "num_classes": "size of a tensor",
            "in_features": "size of a tensor",
            "l2": "not negative",
            "bias": "bool",
            "optimizer": "choice",
        },
    ),
    ConvNetClassifier: (
        {"channels": (2,), "image_size": 16},
        {
            **CLASSIFIER,
            "num_classes": "size of a tensor",
            "in_channels": "size of a tensor",
            "image_size": "too small",
            "channels": "widths",
            "hidden": "widths",
            "padding": "choice",
        },
    ),
    CharLSTM: (
        {"num_classes": 4, "hidden_size": 4, "num_layers": 1},
        {
            **{name: kind for name, kind in CLASSIFIER.items() if name != "metrics"},
            "num_classes": "size of a tensor",
            "embedding_dim": "size of a tensor",
            "hidden_size": "size of a tensor",
            "num_layers": "size of a tensor",
            "cell": "choice",
            "recurrence": "choice",
        },
    ),
    VGG9Classifier: ({}, {**CLASSIFIER, "num_classes": "size of a tensor", "cosine_rounds": "count?"}),
    FrozenPrefix: ({"layers": nn.Identity()}, {"layers": "module"}),
    FedNova: (
        {},
        {
            **RUN,
            "momentum": "share",
            "mu": "not negative",
            "weighting": "choice",
            "server_lr": "positive schedule",
        },
    ),
    QFedAvg: (
        {"q": 0.0},
        {**RUN, "q": "not negative", "lipschitz": "positive?", "server_lr": "positive schedule"},
    ),
    **TRAVELS,
}
ACCEPTED |= {
    "false": {"False"},
    "circulating objective": {"objective"},
    "whole participation": set(),
    "names": {"['a']"},
    "some names": {"'classifier'", "['a']"},
    "durations": {"[0.5]"},
    "open share": {"0.5", "np.float32(0.5)"},
    "finite": KINDS["any number"] - {"nan", "inf", "-inf"},
    "size": {"3", "np.int64(3)"},
    "few": {"3", "np.int64(3)"},
    "attackers": {"0.5", "np.float32(0.5)", "numbers", "[]"},
    "too small": set(),
}


HUGE = {"10**30", "10**400"}
#: Values that are not tried: too large for any memory, or refused by a sentence on another part of the algorithm.
LEFT_OUT = {"size": HUGE, "any number": HUGE, "circulating objective?": {"regularizer"}}
