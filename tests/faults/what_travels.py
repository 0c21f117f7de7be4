"""The part of the catalogue on what travels: compression, privacy, robust aggregations, attacks."""

from __future__ import annotations

from helpers.wrong_values import Makers

from fl_lightning import ExamplePrivacy
from fl_lightning.data import Backdoor
from fl_lightning.diagnostics import BackdoorSuccess
from fl_lightning.parts import (
    QSGD,
    ALittleIsEnough,
    Bucketing,
    CenteredClipping,
    DifferentialPrivacy,
    FairMean,
    GaussianAttack,
    GeometricMedian,
    InnerProductManipulation,
    Krum,
    LocalDifferentialPrivacy,
    LowRank,
    MeasuredLoss,
    Median,
    Mimic,
    NearestNeighborMixing,
    NormalizedMean,
    NormBounding,
    RandomK,
    SecureAggregation,
    SignFlipping,
    SignSGD,
    TopK,
    TrimmedMean,
)

COMPRESSOR = {"error_feedback": "bool?", "link": "choice"}
ROBUST = {"before": "choice?"}

TRAVELS: Makers = {
    TopK: ({"fraction": 0.1}, {**COMPRESSOR, "fraction": "share up to 1"}),
    RandomK: ({"fraction": 0.1}, {**COMPRESSOR, "fraction": "share up to 1"}),
    QSGD: ({"bits": 4}, {**COMPRESSOR, "bits": "few", "bucket_size": "count"}),
    SignSGD: ({}, COMPRESSOR),
    LowRank: ({"rank": 2}, {**COMPRESSOR, "rank": "count", "iterations": "count"}),
    SecureAggregation: ({"clip": 1.0}, {"clip": "positive", "bits": "few", "precision": "few?"}),
    DifferentialPrivacy: (
        {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5},
        {
            "clip": "positive",
            "noise_multiplier": "not negative",
            "epsilon": "choice?",
            "delta": "open share",
            "adaptive_quantile": "open share?",
            "noise_cohort": "count?",
        },
    ),
    ExamplePrivacy: (
        {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5},
        {"clip": "positive", "noise_multiplier": "not negative", "delta": "open share"},
    ),
    LocalDifferentialPrivacy: (
        {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5},
        {"clip": "positive", "noise_multiplier": "not negative", "delta": "open share"},
    ),
    Median: ({}, ROBUST),
    TrimmedMean: ({"trim": 1}, {**ROBUST, "trim": "count or 0"}),
    Krum: ({"num_byzantine": 1}, {**ROBUST, "num_byzantine": "count or 0", "num_selected": "count"}),
    GeometricMedian: (
        {},
        {**ROBUST, "smoothing": "positive", "max_iterations": "count", "tolerance": "not negative"},
    ),
    CenteredClipping: ({"radius": 1.0}, {**ROBUST, "radius": "positive", "iterations": "count"}),
    Bucketing: ({}, {"size": "count"}),
    NearestNeighborMixing: ({"num_byzantine": 1}, {"num_byzantine": "count or 0"}),
    NormBounding: ({"norm": 1.0}, {"norm": "positive"}),
    NormalizedMean: ({}, {"momentum": "share", "mu": "not negative", "weighting": "choice"}),
    FairMean: (
        {"q": 1.0, "measured": MeasuredLoss()},
        {"q": "not negative", "measured": "choice", "lipschitz": "positive?"},
    ),
    SignFlipping: ({"clients": 0.2}, {"clients": "attackers", "scale": "positive"}),
    GaussianAttack: ({"clients": 0.2}, {"clients": "attackers", "std": "positive"}),
    ALittleIsEnough: ({"clients": 0.2}, {"clients": "attackers", "z": "finite?"}),
    InnerProductManipulation: ({"clients": 0.2}, {"clients": "attackers", "scale": "positive"}),
    Mimic: ({"clients": 0.2}, {"clients": "attackers"}),
    BackdoorSuccess: ({"backdoor": Backdoor([0])}, {"backdoor": "choice"}),
}
