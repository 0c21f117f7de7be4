"""What a call leaves out: results depend on it, so that it stays as it is documented."""

from __future__ import annotations

from collections.abc import Callable
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
DEFAULTS: list[tuple[Callable[[], Any], dict[str, Any]]] = [
    (lambda: UniformSampler(3), {"rounding": "floor"}),
    (lambda: ImportanceSampler(3), {"gamma": 0.9, "initial": "scores", "floor": 1e-12, "rounding": "floor"}),
    (lambda: Participation(), {"available": None, "dropout": 0.0, "stragglers": 0.0, "drop_stragglers": False}),
    (lambda: DynamicRegularizer(0.1), {"scale_alpha": "size", "penalty": "gradient"}),
    (lambda: ControlVariates(), {"option": 2}),
    (lambda: BufferExchange(), {"buffers": "average"}),
    (lambda: WeightedMean(), {"weighting": "samples"}),
    (lambda: CurrentMean(), {"weighting": "samples"}),
    (lambda: StaleMean(), {"weighting": "samples"}),
    (lambda: StalenessMixing(), {"mixing": 0.6}),
    (lambda: StalenessWeightedDeltas(), {"weighting": "uniform", "divide_by": "count"}),
    (lambda: DynamicWeightMean(), {"alpha": 0.5, "staleness_at": "receipt", "frequency": "flush"}),
    (lambda: Mixing(), {"lr": 1.0}),
    (lambda: Momentum(), {"momentum": 0.9, "lr": 1.0}),
    (lambda: Adaptive("adam"), {"beta2": 0.99, "tau": 0.001, "v0": 0.0, "bias_correction": False}),
    (lambda: Synchronous(), {"evaluate": "server"}),
    (lambda: Redistribution(3), {"evaluate": "virtual", "unequal": "subsample", "extend_cycle": False}),
    (
        lambda: Asynchronous(VirtualClock()),
        {
            "buffer_size": 1,
            "stamp": "version",
            "wait_for_flush": False,
            "flush_rounds": False,
            "once_per_buffer": False,
        },
    ),
    (lambda: VirtualClock(), {"speeds": 100, "work": 100, "delay": 0, "jitter": 0.0, "dropout": 0.0}),
    (lambda: TopK(0.1), {"error_feedback": True, "link": "up"}),
    (lambda: RandomK(0.1), {"link": "up"}),
    (lambda: QSGD(4), {"bucket_size": 512, "link": "up"}),
    (lambda: SignSGD(), {"error_feedback": True, "link": "up"}),
    (lambda: LowRank(2), {"iterations": 2, "error_feedback": True, "link": "up"}),
    (lambda: SecureAggregation(1.0), {"bits": 32}),
    (lambda: Krum(1), {"num_selected": 1}),
    (lambda: GeometricMedian(), {"smoothing": 1e-6, "max_iterations": 100, "tolerance": 1e-6}),
    (lambda: CenteredClipping(1.0), {"iterations": 1}),
    (lambda: Bucketing(), {"size": 2}),
    (lambda: NormalizedMean(), {"momentum": 0.0, "mu": 0.0, "weighting": "samples"}),
    (lambda: SignFlipping([0]), {"scale": 1.0}),
    (lambda: GaussianAttack([0]), {"std": 1.0}),
    (lambda: InnerProductManipulation([0]), {"scale": 0.1}),
    (lambda: IIDPartitioner(3), {"seed": 0}),
    (lambda: DirichletPartitioner(3, 0.5), {"size_sigma": 0.0, "seed": 0}),
    (lambda: ClasswiseDirichletPartitioner(3, 0.5), {"min_partition_size": 10, "self_balancing": True, "seed": 0}),
    (lambda: QuantitySkewPartitioner(3, 0.5), {"min_partition_size": 10, "seed": 0}),
    (lambda: ShardPartitioner(3), {"num_shards_per_partition": 2, "seed": 0}),
    (lambda: PathologicalPartitioner(3, 2), {"class_assignment_mode": "first-deterministic", "seed": 0}),
    (lambda: LimitedClassesPartitioner(3, [0]), {"num_classes_per_partition": 3, "seed": 0}),
    (lambda: QPPartitioner(3), {"size_alpha": 1.0, "class_alpha": 0.1, "rounding": "margins", **SEARCH}),
    (
        lambda: FeatureQPPartitioner(3),
        {"size_alpha": 1.0, "class_alpha": 0.1, "feature_alpha": 0.1, "num_buckets": 10, **SEARCH},
    ),
    (lambda: NaturalPartitioner(), {"min_partition_size": 1}),
    (lambda: ClientSplit(), {"num_folds": 5, "fold": 0, "seed": 0}),
    (lambda: SampleSplit(), {"val": 0.1, "test": 0.1, "seed": 0, "stratify": False}),
    (lambda: WithinClientSplit(), {"val": 0.1, "test": 0.1, "seed": 0}),
]


@pytest.mark.parametrize(("make", "expected"), DEFAULTS)
def test_defaults(make: Any, expected: dict[str, Any]) -> None:
    thing = make()
    assert {name: getattr(thing, name) for name in expected} == expected
