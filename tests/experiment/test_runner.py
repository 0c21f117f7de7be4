from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
import torch
import yaml
from experiment.conftest import Run, run_here
from helpers.small_table import alone, small, spec, with_data, with_methods
from helpers.written import assert_as_in
from lightning.pytorch.loggers.logger import DummyLogger

from fl_lightning.command import main
from fl_lightning.data.tensor_bytes import fingerprint
from fl_lightning.experiment import describe_plan, describe_time, estimate, measure_paces, processes, read_table, store
from fl_lightning.experiment.cell import CellJob
from fl_lightning.experiment.files import read_csv, read_json, write_json
from fl_lightning.experiment.plan import Cell
from fl_lightning.experiment.progress import Progress
from fl_lightning.experiment.store import Store, describe_results
from fl_lightning.report import experiment_report


def test_methods_share_partition_weights_and_draws_and_finished_cells_are_not_run_again(finished: Run) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.folder.glob("cells/*/result.json")}
    again = finished.again(folds=[0, 1])
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert ": digits, FedAvg, fold 0" not in again.text
    assert len(again.rows) == len(list(finished.folder.glob("cells/*"))) == 4
    assert {row["status"] for row in again.rows} == {"finished"}
    for fold in (0, 1):
        pair = [row for row in again.rows if row["fold"] == fold]
        assert [row["method"] for row in pair] == ["FedAvg", "RADFed"]
        assert len({(row["partition"], row["initial_weights"]) for row in pair}) == 1
        assert [row["aggregations"] for row in pair] == [4, 2]
        assert [row["models_sent"] for row in pair] == [16, 16]
        # the same clients train in the first round of both, from the same weights
        curves = [read_csv(finished.folder / "cells" / row["cell"] / "curve.csv") for row in pair]
        assert curves[0][0]["train_loss"] == curves[1][0]["train_loss"]
    # Bias and weights of the linear model begin at 0.
    assert {row["initial_weights"] for row in again.rows} == {fingerprint([torch.zeros(10), torch.zeros(10, 3072)])}
    assert "4 of 4 cells are finished" in again.text
    written = read_csv(finished.folder / "results.csv")
    assert [float(row["score"]) for row in written] == [row["test_acc_clients"] for row in again.rows]
    assert all(row["code"].startswith("0.") for row in written)


def test_results_have_the_rows_of_the_part_that_ran(finished: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    part = finished.again(methods={"FedAvg": finished.table["methods"]["FedAvg"]})
    written = read_csv(finished.folder / "results.csv")
    assert [row["method"] for row in part.rows] == [row["method"] for row in written] == ["FedAvg"]
    again = finished.again()
    assert again.rows == finished.rows
    assert len(read_csv(finished.folder / "results.csv")) == 2
    # Where no folder is given, it is that of the table's name.
    monkeypatch.chdir(finished.folder.parents[1])
    found = run_here(small(), None)  # type: ignore[arg-type]
    assert found.text.endswith(f"Results: {finished.folder / 'results.csv'}\n")


def test_only_aggregated_models_compete_unless_asked(finished: Run) -> None:
    assert finished.rows[1]["best_round"] in (2, 4)
    last = finished.again(select="last")
    assert [row["best_round"] for row in last.rows] == [4, 4]
    assert float(read_csv(last.cell() / "curve.csv")[-1]["val_acc_clients"]) == last.rows[0]["val"]


def test_each_test_clients_score_is_in_a_file(finished_table: Run) -> None:
    for place, row in enumerate(finished_table.rows):
        scores = read_csv(finished_table.cell(place) / "clients.csv")
        assert list(scores[0]) == ["client", "samples", "test_acc"]
        assert len({client["client"] for client in scores}) == len(scores) > 1
        values = [float(client["test_acc"]) for client in scores]
        assert sum(int(client["samples"]) for client in scores) > len(scores)
        assert sum(values) / len(values) == pytest.approx(row["test_acc_clients"], abs=1e-6)


def test_each_score_of_a_client_stands_under_the_name_of_its_model(tmp_path: Path) -> None:
    """The round is chosen by a score of one model, and that of the other is of the same round."""
    local = spec("fl_lightning.Local", clients_per_round=1.0, local_epochs=20)
    table = small(methods={"Local": {"callback": local}}, trainer={"max_epochs": 1, "accelerator": "cpu"})
    split = spec("fl_lightning.WithinClientSplit", val=0.2, test=0.3)
    table["data"]["digits"]["datamodule"]["init_args"]["split"] = split
    done = run_here(table, tmp_path)
    scores = read_csv(done.cell() / "clients.csv")
    for name, column in (("test_acc_clients", "test_acc"), ("test_acc_personal", "test_acc_personal")):
        mean = sum(float(client[column]) for client in scores) / len(scores)
        assert mean == pytest.approx(done.rows[0][name], abs=1e-6)
    assert any(client["test_acc"] != client["test_acc_personal"] for client in scores)


def test_curves_and_counts_are_of_all_rounds_where_personal_models_of_an_earlier_one_are_tested(tmp_path: Path) -> None:
    methods = {"Ditto": {"callback": spec("fl_lightning.Ditto", clients_per_round=2)}}
    # The loss falls, so that the first round is chosen.
    done = run_here(with_data(monitor="val_loss", mode="max") | {"methods": methods}, tmp_path)
    assert [line["round"] for line in read_csv(done.cell() / "curve.csv")] == ["1", "2", "3", "4"]
    # Each of two clients gets a model and sends one back.
    counts = {"best_round": 1, "rounds": 4, "aggregations": 4, "models_sent": 4 * 2 * 2}
    assert {name: done.rows[0][name] for name in counts} == counts


def test_clients_with_names_have_them_beside_their_scores(tmp_path: Path) -> None:
    lines = [f"{place % 3 / 2},{place % 2},{'aurora' if place < 20 else 'bergen'}" for place in range(40)]
    (tmp_path / "stays.csv").write_text("\n".join(["pulse,ill,hospital", *lines]))
    split = spec("fl_lightning.WithinClientSplit", val=0.2, test=0.2)
    arguments = {"path": str(tmp_path / "stays.csv"), "label": "ill", "client": "hospital", "split": split}
    module = spec("fl_lightning.datamodules.TableDataModule", **arguments, batch_size=4)
    model = spec("fl_lightning.models.MLPClassifier", in_features=1, hidden=[2], num_classes=2, lr=0.1)
    done = run_here(small(data={"stays": {"datamodule": module, "model": model}}, seeds=[0, 1]), tmp_path / "run")
    assert len({row["initial_weights"] for row in done.rows}) == 2  # one for each seed
    for place in range(4):
        scores = read_csv(done.cell(place) / "clients.csv")
        assert {client["client"]: client["name"] for client in scores} == {"0": "aurora", "1": "bergen"}


def test_tuning_chooses_on_validation_and_shares_its_fits_with_the_table(finished: Run) -> None:
    tuned = with_methods(FedAvg={"tune": {"lr": [1e-9, 0.01]}}, RADFed={"take": {"lr": "FedAvg"}})
    again = finished.again(**tuned)
    rows = again.rows
    tuning = read_csv(finished.folder / "tuning.csv")
    common = {"data": "digits", "method": "FedAvg", "fits": "1", "error": ""}
    assert tuning == [
        {**common, "point": "0", "values": '{"lr": 1e-09}', "val": ANY, "chosen": ""},
        {**common, "point": "1", "values": '{"lr": 0.01}', "val": str(rows[0]["val"]), "chosen": "yes"},
    ]
    assert float(tuning[0]["val"]) < rows[0]["val"]
    assert [json.loads(row["values"]) for row in rows] == [{"lr": 0.01}] * 2
    told = f"Chosen for FedAvg on digits: lr=0.01 ({rows[0]['val']:.4f} on validation, of 2 points)."
    assert told in again.text.splitlines()
    # two points of FedAvg, of which one is the table's cell, and RADFed's
    assert len(list(finished.folder.glob("cells/*"))) == 3


#: 10 clients of which 6 train
TOO_MANY = {"callback": spec("fl_lightning.FedAvg", clients_per_round="$m")}


def test_a_failure_is_recorded_and_the_rest_goes_on_and_it_is_tried_again(finished: Run) -> None:
    methods = {"Broken": {**TOO_MANY, "values": {"m": 7}}, "FedAvg": finished.table["methods"]["FedAvg"]}
    broken = finished.again(methods=methods, seeds=[1, 2])
    assert [row["status"] for row in broken.rows] == ["failed", "finished"] * 2
    assert "`clients_per_round`" in broken.rows[0]["error"]
    failed = read_json(broken.cell() / "failed.json")
    assert failed == {"error": broken.rows[0]["error"], "traceback": ANY, "attempts": 1}
    assert failed["traceback"].startswith("Traceback")
    assert "2 of 4 cells are finished, 2 failed" in broken.text
    assert "\ndigits, Broken, fold 0, seed 1 and 1 more: ValueError: `clients_per_round`" in broken.text
    assert broken.again().text.count("failed: digits, Broken") == 2
    assert [read_json(broken.cell(place) / "failed.json")["attempts"] for place in (0, 2)] == [2, 2]


def test_a_search_goes_on_without_points_that_fail(finished: Run) -> None:
    tuned = with_methods(RADFed={"tune": {"lr": [0.01, 1e-9]}}, Tuned={**TOO_MANY, "tune": {"m": [7, 2]}})
    again = finished.again(**tuned)
    assert again.rows[2]["status"] == "finished"
    told = " ".join(again.text.split())
    assert "Chosen for RADFed on digits: lr=0.01 " in told
    assert ", of 2 points; 1 without a score: ValueError: `clients_per_round`" in told
    tuning = read_csv(finished.folder / "tuning.csv")
    assert [row["chosen"] for row in tuning] == ["yes", "", "", "yes"]
    assert "`clients_per_round`" in tuning[2]["error"]


#: validates by the loss, without choosing a model; a server learning rate of 1e38 makes the loss NaN
DIVERGES = {"callback": spec("fl_lightning.FedAvg", clients_per_round=2, server_lr="$s")}


def by_loss(**methods: Any) -> dict[str, Any]:
    data = with_data(monitor="val_loss", mode="min", score="test_loss")["data"]
    return small(data=data, methods=methods, select="last")


def test_a_search_does_not_choose_a_point_that_diverges(tmp_path: Path) -> None:
    done = run_here(by_loss(Tuned={**DIVERGES, "tune": {"s": [1e38, 1.0]}}), tmp_path)
    assert json.loads(done.rows[0]["values"]) == {"s": 1.0}
    tuning = read_csv(tmp_path / "tuning.csv")
    assert [(row["chosen"], row["error"]) for row in tuning] == [("", "the validation metric is nan"), ("yes", "")]
    assert tuning[0]["val"] == ""


def test_a_score_that_is_not_finite_is_told_and_left_out_of_the_report(tmp_path: Path) -> None:
    wild = {"Wild": {**DIVERGES, "values": {"s": 1e38}}}
    done = run_here(by_loss(FedAvg=small()["methods"]["FedAvg"], **wild), tmp_path)
    assert "digits, Wild, fold 0, seed 0: `test_loss` is NaN or infinite" in done.text
    page = experiment_report(tmp_path).read_text(encoding="utf-8")
    assert "1 with a score that is NaN or infinite. No number includes these." in page
    assert "`test_loss` is nan: the model may have diverged." in page
    done.again(methods=wild)
    [row] = done.again(methods=wild, select="best on validation").rows
    assert row["error"] == "ValueError: `monitor` val_loss was never finite: lower the learning rate."
    with pytest.raises(ValueError, match=r"every finished run is NaN or infinite.* lower the learning rate"):
        experiment_report(tmp_path)


def test_workers_give_what_one_process_gives(tmp_path: Path, finished_table: Run) -> None:
    one = finished_table.folder
    text = run_here(small(), tmp_path, workers=2).text
    assert (one / "results.csv").read_bytes() == (tmp_path / "results.csv").read_bytes()
    for curve in one.glob("cells/*/curve.csv"):
        assert curve.read_bytes() == (tmp_path / "cells" / curve.parent.name / "curve.csv").read_bytes()
    assert "cells 2/2 finished" in text


def test_workers_at_the_same_time_have_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, str]] = []
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    class Process:
        """Starts nothing."""

        def __init__(self, target: Any, args: Any) -> None:
            assert (target, args[:2]) == (processes._work, (job, workers.options))
            given.append(args[2])

        def start(self) -> None: ...

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(processes, "_context", lambda: SimpleNamespace(Process=Process))
    workers = processes.Workers(processes.RunOptions(workers=3, devices=[3, 5]))
    job: Any = None
    for _ in range(3):
        workers.start(job)
    others = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"}
    assert given == [{**others, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": gpu} for gpu in "353"]
    assert len(workers) == 3


def test_workers_take_different_cells_and_are_ended_when_they_take_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Process:
        """Ends when it is killed, and not before."""

        exitcode: int | None = None

        def __init__(self, target: Any, args: Any) -> None: ...

        def start(self) -> None: ...

        def join(self) -> None: ...

        def kill(self) -> None:
            self.exitcode = -signal.SIGKILL

    now = [0.0]
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(processes, "_context", lambda: SimpleNamespace(Process=Process))
    workers = processes.Workers(processes.RunOptions(workers=2, cell_timeout=0.5))
    jobs = [CellJob(Cell("d", "m", 0, seed, {}, {"seed": seed}), tmp_path) for seed in range(4)]
    write_json(jobs[0].folder / "result.json", {})
    claimed = []
    while job := workers.claim(jobs):
        claimed.append(job.folder)
        workers.start(job)
        now[0] += 1.0
    assert claimed == [jobs[1].folder, jobs[2].folder]
    # The first one has 0.5 seconds, and one more for its last words.
    workers.end()
    assert len(workers) == 1
    assert read_json(jobs[1].folder / "failed.json")["error"].startswith("TimeoutError: the cell took longer than 0.5")
    assert not (jobs[2].folder / "failed.json").exists()
    again = workers.claim(jobs)
    assert again is not None and (again.folder, again.attempt.number) == (jobs[1].folder, 2)
    workers.start(again)
    workers._give_up(again.folder)
    assert [each.process.exitcode for each in workers._at_work.values()] == [None, -signal.SIGKILL]
    workers.close()
    assert {each.process.exitcode for each in workers._at_work.values()} == {-signal.SIGKILL}


@pytest.mark.parametrize(
    ("code", "until", "how"),
    [
        (0, None, ""),
        (3, None, ""),
        (4, None, "The worker process ended with code 4 in the middle of the cell; see log.txt."),
        (-15, 2.0, "The worker process was ended by SIGTERM in the middle of the cell; see log.txt."),
        (-9, None, "The worker process was ended by SIGKILL, maybe because the memory was full, in the middle of"),
        (-9, 1.0, "TimeoutError: the cell took longer than 0.5 s (`cell_timeout`), so it was stopped."),
    ],
)
def test_how_a_worker_ended(monkeypatch: pytest.MonkeyPatch, code: int, until: float | None, how: str) -> None:
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: 1.0))
    workers = processes.Workers(processes.RunOptions(cell_timeout=0.5))
    ended: Any = SimpleNamespace(
        process=SimpleNamespace(exitcode=code), until=until, job=SimpleNamespace(log="log.txt")
    )
    told = workers._how_it_ended(ended)
    assert told.startswith(how) and bool(told) == bool(how)


def test_a_partition_that_cannot_be_drawn_is_told(tmp_path: Path) -> None:
    data: Any = SimpleNamespace(partition=SimpleNamespace(fingerprint=lambda: "a"), plot=lambda: 1 / 0)
    with pytest.warns(UserWarning, match="The partition could not be drawn: division by zero"):
        store.draw_partition(tmp_path, data, Cell("d", "m", 0, 0, {}, {}))


TROUBLES: list[dict[str, Any]] = [
    {},
    {"status": "failed", "error": "ValueError: x"},
    {"score": None},
    {"score": None, "test_b": 1.0, "test_a": 1.0},
    {"score": float("inf")},
    {"code": "1, then 2"},
]


def test_each_kind_of_trouble_is_told_once_with_its_first_cell(tmp_path: Path) -> None:
    row = {"data": "digits", "method": "FedAvg", "status": "finished", "score": 0.5, "code": "1"}
    rows = [{**row, **more, "fold": fold, "seed": 9 - n} for fold, more in enumerate(TROUBLES) for n in range(fold)]
    told = describe_results(read_table(small()), rows, 17, Path("out"))
    assert_as_in(Path(__file__).with_name("troubles.txt"), told, tmp_path)


def test_what_came_out_of_a_point(tmp_path: Path) -> None:
    store = Store(tmp_path)
    cells = [Cell("d", "m", 0, seed, {}, {"seed": seed}) for seed in range(4)]

    def tried(*results: dict[str, Any]) -> tuple[Any, ...]:
        store.__init__(tmp_path)  # type: ignore[misc]
        for cell, result in zip(cells, results, strict=False):
            name = "failed" if "error" in result else "result"
            write_json(store.cell_folder(cell) / f"{name}.json", result)
        found = store.tried({"a": 1}, cells[: len(results)])
        assert (found.point, found.fits) == ({"a": 1}, tuple(cell.id for cell in cells[: len(results)]))
        shutil.rmtree(tmp_path / "cells")
        return found.finite, found.score, found.error, found.pruned

    assert tried({"val": 0.25}, {"val": 0.75}) == (2, 0.5, "", 0)
    assert tried({"val": None}, {"val": 0.75}) == (1, None, "", 0)
    nan = "the validation metric is nan"
    assert tried({"val": float("nan")}, {"val": 0.75}, {"error": "E: x"}, {"error": "E: y"}) == (1, None, "E: x", 0)
    pruned = [{"val": 0.25, "pruned": True, "rounds": rounds} for rounds in (9, 3)]
    assert tried({"val": float("nan")}, *pruned) == (2, None, nan, 3)
    assert tried(*pruned) == (2, 0.25, "pruned after 3 rounds", 3)


def deadly(code: int) -> dict[str, Any]:
    return {**small()["methods"]["FedAvg"], "callbacks": [spec("faulty.Die", code=code)]}


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "how"), [(-signal.SIGKILL, "was ended by SIGKILL, maybe because"), (7, "ended with code 7")]
)
def test_a_worker_that_dies_is_a_failed_cell(code: int, how: str, tmp_path: Path, faulty: None) -> None:
    rows = run_here(with_methods(Deadly=deadly(code)), tmp_path, workers=1).rows
    assert [row["status"] for row in rows] == ["finished", "finished", "failed"]
    assert f"The worker process {how}" in rows[2]["error"]


@pytest.mark.long
def test_sigterm_in_this_process_ends_the_command_with_its_status(
    tmp_path: Path, faulty: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(yaml.safe_dump(with_methods(Deadly=deadly(-signal.SIGTERM))))
    assert main(["run", str(path), "--output", str(tmp_path / "out"), "--workers", "0"]) == 143
    assert capsys.readouterr().err.endswith("Ended by SIGTERM. Run the same command again to continue.\n")
    assert not list(tmp_path.rglob("failed.json"))


@pytest.mark.long
def test_an_interrupted_run_ends_its_workers_and_records_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(self: Store, *arguments: Any) -> Any:
        raise KeyboardInterrupt

    path = tmp_path / "table.yaml"
    path.write_text(yaml.safe_dump(small()))
    options = ["run", str(path), "--output", str(tmp_path / "out"), "--workers", "1"]
    # Ctrl-C while the first finished cell is entered
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "end", interrupt)
        with pytest.raises(SystemExit, match="130"):
            main(options)
    assert "Run the same command again to continue" in capsys.readouterr().err
    assert not list(tmp_path.rglob("failed.json"))
    # the folder is free again, for no worker holds its lock
    assert main(options) == 0


def test_a_run_of_wandb_is_named_by_data_method_fold_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    ended: list[bool] = []
    experiment = SimpleNamespace(summary={}, finish=lambda: ended.append(True))

    class Logger(DummyLogger):
        def __init__(self, **options: Any) -> None:
            super().__init__()
            given.append(options)
            self._experiment = experiment  # type: ignore[assignment]

    monkeypatch.setattr("fl_lightning.experiment.cell.make_wandb_logger", Logger)
    table = alone(wandb={"project": "test", "mode": "offline"}, seeds=[7])
    table["trainer"]["max_epochs"] = 1
    table["methods"]["FedAvg"] |= {**TOO_MANY, "tune": {"lr": [0.01], "m": [2]}}
    done = run_here(table, tmp_path)
    [row] = done.rows
    assert row["status"] == "finished"
    [options] = given
    config = options.pop("config")
    assert options == {
        **{"name": "digits-FedAvg-0-7-lr=0.01-m=2", "group": "digits-FedAvg", "project": "test", "mode": "offline"},
        **{"save_dir": done.cell(), "id": row["cell"], "resume": "allow"},
    }
    labels = {"data": "digits", "method": "FedAvg", "fold": 0, "seed": 7, "values": {"lr": 0.01, "m": 2}}
    labels["code"] = row["code"]
    assert config == {**config, **labels, "cell": read_json(done.cell() / "config.json")}
    result = read_json(done.cell() / "result.json")
    scores, _ = result.pop("test"), result.pop("constant")
    assert (experiment.summary, ended) == ({**result, **scores}, [True])


@pytest.mark.long
def test_wandb_gets_the_configuration_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    rows = run_here(alone(wandb={"project": "test", "mode": "offline"}), tmp_path).rows
    assert rows[0]["status"] == "finished"
    [folder] = tmp_path.glob("cells/*/wandb/offline-run-*")
    assert folder.name.endswith(rows[0]["cell"])


#: Nobody knows what it logs.
OWN_MODEL = spec("faulty.OwnModel", in_features=3072, num_classes=10)


def test_the_monitor_must_be_logged(tmp_path: Path, faulty: None) -> None:
    done = run_here(with_data(model=OWN_MODEL, monitor="val_nothing", score_mode="max"), tmp_path)
    assert all(row["status"] == "failed" and "val_nothing" in row["error"] for row in done.rows)


def test_a_score_that_no_cell_logs_is_named(tmp_path: Path, faulty: None) -> None:
    done = run_here(with_data(model=OWN_MODEL, score="test_nothing", score_mode="max"), tmp_path)
    assert [(row["status"], row["score"]) for row in done.rows] == [("finished", None)] * 2
    told = "digits, FedAvg, fold 0, seed 0 and 1 more: `score` is 'test_nothing', but the cell logged test_acc, "
    assert done.text.splitlines()[-1].startswith(told)
    # correcting it runs nothing again
    again = done.again(**with_data(model=OWN_MODEL, score="test_acc"))
    assert all(row["score"] == row["test_acc"] for row in again.rows)
    assert "1/2 " not in again.text


def test_plan_and_time(tmp_path: Path) -> None:
    table = read_table(with_methods(RADFed={"tune": {"lr": [0.1, 0.2, 0.3]}}))
    assert describe_plan(table, tmp_path).startswith("""small: 1 fold x 1 seed
  digits, FedAvg: 1 fit; 4 rounds; 0 finished
  digits, RADFed: 3 points, 3 fits to tune; 1 fit; 12 rounds; 0 finished
  together 16 rounds
""")
    model = spec("fl_lightning.models.LogisticRegressionClassifier", in_features=3072, num_classes=10, l2=-1)
    paces, errors = measure_paces(read_table(with_data(model=model)))
    assert not paces
    nothing, reason = describe_time(table, paces, errors).splitlines()
    assert nothing.startswith("Nothing has been measured")
    assert reason.startswith("CANNOT RUN digits: ValueError: `l2`")


OF_FIT = {"rounds": 4, "aggregations": 4, "models_sent": 16}


def test_all_that_a_cell_writes(finished_table: Run) -> None:
    row = finished_table.rows[0]
    folder = finished_table.cell()
    assert (
        re.sub("; about .* left", "", finished_table.text)
        == f"""cells 1/2 finished: digits, FedAvg, fold 0, seed 0
cells 2/2 finished: digits, RADFed, fold 0, seed 0
2 of 2 cells are finished. Results: {finished_table.folder / "results.csv"}
"""
    )
    names = "clients.csv config.json curve.csv result.json run.json"
    assert " ".join(sorted(path.name for path in folder.iterdir())) == names
    written = read_csv(finished_table.folder / "results.csv")[0]
    names = """data method fold seed values status score select val best_round rounds aggregations cell code
        constant_score initial_weights models_sent partition test_acc test_acc_clients test_acc_clients_lowest10
        test_acc_clients_max test_acc_clients_min test_acc_clients_std test_acc_clients_weighted test_loss"""
    assert list(written) == names.split()
    known = {"data": "digits", "method": "FedAvg", "fold": 0, "seed": 0, "values": "{}", "status": "finished"}
    known |= {"score": row["test_acc_clients"], "select": "best on validation", **OF_FIT}
    assert row == {**row, **known}
    assert {name: str(row[name]) for name in written} == written
    result = read_json(folder / "result.json")
    assert set(result) == {"best_round", "val", "test", "constant", *OF_FIT, "partition", "initial_weights", "code"}
    assert result == {**result, **OF_FIT}
    curve = read_csv(folder / "curve.csv")
    best = curve[row["best_round"] - 1]
    assert float(best["val_acc_clients"]) == row["val"] == max(float(each["val_acc_clients"]) for each in curve)
    assert read_json(finished_table.folder / "table.json")["code"] == row["code"]
    about = read_json(folder / "run.json")
    assert {"seconds", "begun", "ended", "python", "torch", "lightning", "numpy"} <= set(about)
    assert (about["resumed"], about["device"]) == (False, "cpu")


def test_a_measured_round_has_its_share_of_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    # A round takes a second, and the validation after the last one ten, which the table has in every fifth round.
    # On the other data set a round takes two seconds, and the last one happens to be shorter.
    ends = iter([100.0, 101.0, 102.0, 113.0, 200.0, 202.0, 204.0, 205.0])
    monkeypatch.setattr(estimate, "time", SimpleNamespace(perf_counter=lambda: next(ends)))
    content = small(trainer={"max_epochs": 10, "accelerator": "cpu", "check_val_every_n_epoch": 5})
    content["data"]["more"] = content["data"]["digits"]
    table = read_table(content)
    paces, errors = measure_paces(table)
    assert (paces, errors) == ({"digits": 3.0, "more": 2.0}, {})
    # 20 rounds on each, one after the other
    told = "Measured seconds a round: digits 3, more 2. All fits on digits, more will take about 2 min."
    told += "\nCANNOT RUN x: no file\nCANNOT RUN y: no room"
    assert describe_time(table, paces, {"x": "no file", "y": "no room"}, workers=0) == told


def test_the_plan_says_how_many_seeds_and_data_sets_a_test_needs(tmp_path: Path) -> None:
    # Of three pairs, all in one direction: 2 of 8 signs are as extreme. Five methods need 5 x 2^(1 - n) < 0.05.
    few = describe_plan(read_table(small(seeds=[0, 1, 2])), tmp_path)
    assert "3 pairs of runs with FedAvg: the smallest p is 0.25" in few
    assert "it takes 6 seeds" in few
    assert "it takes 6 of one metric, and the table has 1" in few
    callback = small()["methods"]["FedAvg"]["callback"]
    several = with_methods(**{f"Method {number}": {"callback": callback} for number in range(4)})
    several |= {"folds": [0, 1], "seeds": [0, 1, 2]}
    text = describe_plan(read_table(several), tmp_path)
    assert "6 pairs of runs with FedAvg: the smallest p is 0.031, 0.16 corrected for 5 methods" in text
    assert "it takes 4 seeds in 2 folds" in text
    enough = describe_plan(read_table({**several, "seeds": [0, 1, 2, 3]}), tmp_path)
    assert "the smallest p is 0.0078, 0.039 corrected for 5 methods.\n" in enough
    sets = {**several, "data": {f"digits {number}": several["data"]["digits"] for number in range(6)}}
    assert "Significance over 6 data sets: the smallest p is 0.031." in describe_plan(read_table(sets), tmp_path)
    alone = small(methods={"FedAvg": {"callback": callback}})
    assert "ignificance" not in describe_plan(read_table(alone), tmp_path)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(yaml.safe_dump(small(seeds=[0, 1])))
    options = ["run", str(path), "--output", str(tmp_path / "out")]
    options += ["--workers", "0", "--methods", "FedAvg", "--seeds", "1"]
    assert main([*options, "--dry-run"]) == 0
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("fl_lightning.experiment.measure_paces", lambda table: ({"digits": 9000.0}, {}))
    assert main([*options[:-6], "--workers", "2", "--estimate"]) == 0
    assert capsys.readouterr().out.endswith(
        "seconds a round: digits 9e+03. All fits on digits will take about 20.0 h.\n"
    )
    assert main(options) == 0
    [row] = read_csv(tmp_path / "out" / "results.csv")
    assert (row["method"], row["seed"]) == ("FedAvg", "1")
    shown = capsys.readouterr().out.splitlines()
    assert ["FedAvg", f"{100 * float(row['score']):.2f}"] in [line.split() for line in shown]
    assert shown[-1] == f"The whole report: fl-lightning report {tmp_path / 'out'}"
