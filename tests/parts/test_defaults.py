"""What a call leaves out: results depend on it, so that it stays as it is documented."""

from __future__ import annotations

from typing import Any

import pytest

from fl_lightning.data import ClientSplit, SampleSplit, WithinClientSplit
from fl_lightning.partitioners import (
    ClasswiseDirichletPartitioner,
    DirichletPartitioner,
    FeatureQPPartitioner,
    IIDPartitioner,
    LimitedClassesPartitioner,
    NaturalPartitioner,
    PathologicalPartitioner,
    QPPartitioner,
    QuantitySkewPartitioner,
    ShardPartitioner,
)
from fl_lightning.parts import (
    QSGD,
    Adaptive,
    Asynchronous,
    Bucketing,
    BufferExchange,
    CenteredClipping,
    ControlVariates,
    CurrentMean,
    DynamicRegularizer,
    DynamicWeightMean,
    GaussianAttack,
    GeometricMedian,
    ImportanceSampler,
    InnerProductManipulation,
    Krum,
    LowRank,
    Mixing,
    Momentum,
    NormalizedMean,
    Participation,
    RandomK,
    Redistribution,
    SecureAggregation,
    SignFlipping,
    SignSGD,
    StaleMean,
    StalenessMixing,
    StalenessWeightedDeltas,
    Synchronous,
    TopK,
    UniformSampler,
    VirtualClock,
    WeightedMean,
)

SEARCH = {"burn_in": 100_000, "search": 500_000, "step": 0.002, "step_rule": "relative", "seed": 0}
DEFAULTS: list[tuple[Any, dict[str, Any]]] = [
    (UniformSampler(3), {"rounding": "floor"}),
    (ImportanceSampler(3), {"gamma": 0.9, "initial": "scores", "floor": 1e-12, "rounding": "floor"}),
    (Participation(), {"available": None, "dropout": 0.0, "stragglers": 0.0, "drop_stragglers": False}),
    (DynamicRegularizer(0.1), {"scale_alpha": "size", "penalty": "gradient"}),
    (ControlVariates(), {"option": 2}),
    (BufferExchange(), {"buffers": "average"}),
    (WeightedMean(), {"weighting": "samples"}),
    (CurrentMean(), {"weighting": "samples"}),
    (StaleMean(), {"weighting": "samples"}),
    (StalenessMixing(), {"mixing": 0.6}),
    (StalenessWeightedDeltas(), {"weighting": "uniform", "divide_by": "count"}),
    (DynamicWeightMean(), {"alpha": 0.5, "staleness_at": "receipt", "frequency": "flush"}),
    (Mixing(), {"lr": 1.0}),
    (Momentum(), {"momentum": 0.9, "lr": 1.0}),
    (Adaptive("adam"), {"beta2": 0.99, "tau": 0.001, "v0": 0.0, "bias_correction": False}),
    (Synchronous(), {"evaluate": "server"}),
    (Redistribution(3), {"evaluate": "virtual", "unequal": "subsample", "extend_cycle": False}),
    (
        Asynchronous(VirtualClock()),
        {
            "buffer_size": 1,
            "stamp": "version",
            "wait_for_flush": False,
            "flush_rounds": False,
            "once_per_buffer": False,
        },
    ),
    (VirtualClock(), {"speeds": 100, "work": 100, "delay": 0, "jitter": 0.0, "dropout": 0.0}),
    (TopK(0.1), {"error_feedback": True, "link": "up"}),
    (RandomK(0.1), {"link": "up"}),
    (QSGD(4), {"bucket_size": 512, "link": "up"}),
    (SignSGD(), {"error_feedback": True, "link": "up"}),
    (LowRank(2), {"iterations": 2, "error_feedback": True, "link": "up"}),
    (SecureAggregation(1.0), {"bits": 32}),
    (Krum(1), {"num_selected": 1}),
    (GeometricMedian(), {"smoothing": 1e-6, "max_iterations": 100, "tolerance": 1e-6}),
    (CenteredClipping(1.0), {"iterations": 1}),
    (Bucketing(), {"size": 2}),
    (NormalizedMean(), {"momentum": 0.0, "mu": 0.0, "weighting": "samples"}),
    (SignFlipping([0]), {"scale": 1.0}),
    (GaussianAttack([0]), {"std": 1.0}),
    (InnerProductManipulation([0]), {"scale": 0.1}),
    (IIDPartitioner(3), {"seed": 0}),
    (DirichletPartitioner(3, 0.5), {"size_sigma": 0.0, "seed": 0}),
    (ClasswiseDirichletPartitioner(3, 0.5), {"min_partition_size": 10, "self_balancing": True, "seed": 0}),
    (QuantitySkewPartitioner(3, 0.5), {"min_partition_size": 10, "seed": 0}),
    (ShardPartitioner(3), {"num_shards_per_partition": 2, "seed": 0}),
    (PathologicalPartitioner(3, 2), {"class_assignment_mode": "first-deterministic", "seed": 0}),
    (LimitedClassesPartitioner(3, [0]), {"num_classes_per_partition": 3, "seed": 0}),
    (QPPartitioner(3), {"size_alpha": 1.0, "class_alpha": 0.1, "rounding": "margins", **SEARCH}),
    (
        FeatureQPPartitioner(3),
        {"size_alpha": 1.0, "class_alpha": 0.1, "feature_alpha": 0.1, "num_buckets": 10, **SEARCH},
    ),
    (NaturalPartitioner(), {"min_partition_size": 1}),
    (ClientSplit(), {"num_folds": 5, "fold": 0, "seed": 0}),
    (SampleSplit(), {"val": 0.1, "test": 0.1, "seed": 0, "stratify": False}),
    (WithinClientSplit(), {"val": 0.1, "test": 0.1, "seed": 0}),
]


@pytest.mark.parametrize(("thing", "expected"), DEFAULTS, ids=lambda value: type(value).__name__)
def test_defaults(thing: Any, expected: dict[str, Any]) -> None:
    assert {name: getattr(thing, name) for name in expected} == expected
