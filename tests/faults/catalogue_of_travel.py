"""What travels and how it is merged: privacy, compression, robust aggregations, attacks, fair and normalised means."""

from __future__ import annotations

from faults.catalogue import RUN
from helpers.wrong_values import Makers

import fl_lightning
from fl_lightning import parts

CLIENTS = "attackers"
SCALE = {"scale": "positive"}
MAKERS: Makers = {
    fl_lightning.FedNova: (
        {},
        {**RUN, "momentum": "share", "mu": "not negative", "weighting": "choice", "server_lr": "positive schedule"},
    ),
    fl_lightning.QFedAvg: (
        {"q": 1.0},
        {**RUN, "q": "not negative", "lipschitz": "positive?", "server_lr": "positive schedule"},
    ),
    parts.NormalizedMean: ({}, {"momentum": "share", "mu": "not negative", "weighting": "choice"}),
    parts.CenteredClipping: ({"radius": 1.0}, {"radius": "positive", "iterations": "count", "before": "choice?"}),
    parts.GeometricMedian: (
        {},
        {"smoothing": "positive", "max_iterations": "count", "tolerance": "not negative", "before": "choice?"},
    ),
    parts.Krum: ({"num_byzantine": 1}, {"num_byzantine": "count or 0", "num_selected": "count", "before": "choice?"}),
    parts.Median: ({}, {"before": "choice?"}),
    parts.TrimmedMean: ({"trim": 1}, {"trim": "trim", "before": "choice?"}),
    parts.Bucketing: ({}, {"size": "count"}),
    parts.NearestNeighborMixing: ({"num_byzantine": 1}, {"num_byzantine": "count or 0"}),
    parts.NormBounding: ({"norm": 1.0}, {"norm": "positive"}),
    parts.DifferentialPrivacy: (
        {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5},
        {
            "clip": "positive",
            "noise_multiplier": "not negative",
            "epsilon": "choice?",  # beside a noise multiplier
            "delta": "open share",
            "adaptive_quantile": "open share?",
            "noise_cohort": "count?",
        },
    ),
    parts.QSGD: (
        {"bits": 4},
        {"bits": "size", "bucket_size": "count", "error_feedback": "bool?", "link": "choice"},
    ),
    parts.TopK: ({"fraction": 0.1}, {"fraction": "share up to 1", "error_feedback": "bool?", "link": "choice"}),
    parts.RandomK: ({"fraction": 0.1}, {"fraction": "share up to 1", "error_feedback": "bool?", "link": "choice"}),
    parts.SignSGD: ({}, {"error_feedback": "bool?", "link": "choice"}),
    parts.LowRank: (
        {"rank": 2},
        {"rank": "count", "iterations": "count", "error_feedback": "bool?", "link": "choice"},
    ),
    parts.SecureAggregation: ({"clip": 1.0}, {"clip": "positive", "bits": "bits", "precision": "bits?"}),
    parts.SignFlipping: ({"clients": [0]}, {"clients": CLIENTS, **SCALE}),
    parts.GaussianAttack: ({"clients": [0]}, {"clients": CLIENTS, "std": "positive"}),
    parts.ALittleIsEnough: ({"clients": [0]}, {"clients": CLIENTS, "z": "finite?"}),
    parts.InnerProductManipulation: ({"clients": [0]}, {"clients": CLIENTS, **SCALE}),
    parts.Mimic: ({"clients": [0]}, {"clients": CLIENTS}),
}
#: What further kinds of arguments accept.
FURTHER = {
    "attackers": {"0.5", "np.float32(0.5)", "[]", "numbers"},
    "trim": {"0", "3", "10**30", "10**400", "np.int64(3)"},
    "bits": {"3", "np.int64(3)"},
}
