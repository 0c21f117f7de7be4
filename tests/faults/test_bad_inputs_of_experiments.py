"""The catalogue of wrong values, given to what runs tables and sweeps, reports them and computes their statistics."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from faults.catalogue import ACCEPTED
from helpers.small_table import small
from helpers.wrong_values import VALUES, Makers, arguments_of, labels_of, problems
from rich.console import Console

from fl_lightning import TensorDataModule, partition_report
from fl_lightning.experiment import (
    check_table,
    describe_plan,
    describe_time,
    measure_paces,
    read_table,
    run_sweep,
    run_table,
)
from fl_lightning.experiment.statistics import (
    average_ranks,
    holm,
    mean_relative_difference,
    most_representative_fold,
    relative_difference,
    relative_difference_of_means,
    signed_rank_test,
    smooth,
    summarize,
)
from fl_lightning.report import experiment_report, plot_run, read_curves

KINDS = {
    **ACCEPTED,
    "one number": {"[0.5]"},
    "numbers": {"[0.5]", "numbers"},
    "gaps": {"[]", "[0.5]", "numbers", "nans"},
    "shares": {"[]", "[0.5]"},
    "facts": {"{}"},
    "several rounds": {"3", "np.int64(3)"},
    "no arguments": {"[]", "['a']"},
}
#: Values that are not tried: a table without entries names what it lacks, and 10**30 rounds take too long.
NOT_TRIED = {"table": {"{}"}, "source": {"{}"}, "rounds": {"10**30"}, "digits": {"10**30"}}
CALLS: Makers = {
    run_table: (
        {},
        {
            "table": "choice",
            "output": "path?",
            "workers": "count or 0",
            "devices": "choice?",  # without a GPU
            "checkpoint_seconds": "not negative",
            "cell_timeout": "choice?",  # without worker processes
            "retries": "count or 0",
            "memory_limit": "choice?",
            "console": "choice?",
        },
    ),
    run_sweep: (
        {},
        {
            "path": "choice",
            "count": "count?",
            "seed": "count or 0",
            "output": "path?",
            "further": "no arguments",
            "console": "choice?",
        },
    ),
    partition_report: (
        {},
        {
            "datamodule": "choice",
            "out": "path?",
            "features": "facts?",
            "logger": "choice?",
            "max_clients": "count",
            "overwrite": "bool",
        },
    ),
    read_table: ({}, {"source": "choice"}),
    check_table: ({}, {"table": "choice", "with_data": "bool"}),
    describe_plan: ({}, {"table": "choice", "folder": "path", "with_data": "bool"}),
    measure_paces: ({}, {"table": "choice", "rounds": "several rounds"}),
    describe_time: (
        {"paces": {}, "errors": {}},
        {"table": "choice", "paces": "facts", "errors": "facts", "workers": "count or 0"},
    ),
    experiment_report: ({}, {"results": "choice", "out": "path?"}),
    plot_run: ({}, {"log_dir": "choice", "data": "choice?", "clients": "facts?"}),
    read_curves: ({}, {"log_dir": "choice"}),
    summarize: ({"scores": [1.0, 2.0]}, {"scores": "numbers", "confidence": "open share"}),
    relative_difference: ({"score": 1.0, "baseline": 2.0}, {"score": "finite", "baseline": "not zero"}),
    relative_difference_of_means: (
        {"scores": [1.0], "baselines": [2.0]},
        {"scores": "one number", "baselines": "one number"},
    ),
    mean_relative_difference: (
        {"scores": [1.0], "baselines": [2.0]},
        {"scores": "one number", "baselines": "one number"},
    ),
    signed_rank_test: (
        {"scores": [1.0], "baselines": [2.0]},
        {"scores": "one number", "baselines": "one number", "digits": "several rounds or 0"},
    ),
    holm: ({}, {"p_values": "shares"}),
    average_ranks: ({"scores": {"a": [1.0], "b": [2.0]}}, {"scores": "choice", "mode": "choice"}),
    most_representative_fold: (
        {"scores": {0: [1.0]}, "baselines": {0: [1.0]}},
        {"scores": "choice", "baselines": "choice"},
    ),
    smooth: ({"values": [1.0], "interval": 1}, {"values": "gaps", "interval": "count"}),
}
KINDS |= {"not zero": KINDS["finite"] - {"0"}, "several rounds or 0": {"0", "3", "np.int64(3)"}}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, dict[str, Any]]:
    """What the calls are given beside the wrong value: a finished table, a sweep, data and a log."""
    folder = tmp_path_factory.mktemp("finished")
    console = Console(file=io.StringIO())
    table = small()
    del table["methods"]["RADFed"]
    table["trainer"]["max_epochs"] = 1
    run_table(table, folder, workers=0, console=console)
    parameters = {"x": {"values": [1]}}
    sweep = {"name": "small", "program": "false", "method": "grid", "command": ["false"], "parameters": parameters}
    sweep["metric"] = {"name": "score", "goal": "maximize"}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    (folder / "metrics.csv").write_text("round,train_loss\n0,1.0\n1,0.5\n")
    clients = [(torch.zeros(2, 2), torch.tensor([0, 1])), (torch.ones(3, 2), torch.tensor([0, 1, 1]))]
    datamodule = TensorDataModule(clients)
    datamodule.prepare_data()
    datamodule.setup("fit")
    return {
        run_table: {"table": table, "output": folder, "workers": 0, "console": console},
        run_sweep: {"path": folder / "sweep.yaml", "output": folder / "sweep", "console": console},
        partition_report: {"datamodule": datamodule},
        describe_plan: {"table": read_table(table), "folder": folder},
        check_table: {"table": read_table(table)},
        measure_paces: {"table": read_table(table)},
        describe_time: {"table": read_table(table)},
        experiment_report: {"results": folder},
        plot_run: {"log_dir": folder},
    }


@pytest.mark.parametrize(("call", "others", "argument", "kind"), arguments_of(CALLS))
def test_a_value_means_something_or_is_refused_by_name(
    right: dict[Any, dict[str, Any]],
    call: Any,
    others: dict[str, Any],
    argument: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    values = {label: value for label, value in VALUES.items() if label not in NOT_TRIED.get(argument, ())}
    assert not problems(call, {**right.get(call, {}), **others}, argument, labels_of(kind, KINDS), values)
