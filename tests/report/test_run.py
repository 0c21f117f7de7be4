"""The picture of a run, from a CSV log whose rows are written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.drawn import drawn
from helpers.written import assert_as_in
from lightning.pytorch.loggers import CSVLogger
from matplotlib.text import Text
from torch.utils.data import TensorDataset

from fl_lightning import FederatedDataModule
from fl_lightning.data import ClientSplit, Source
from fl_lightning.partitioners import IIDPartitioner
from fl_lightning.report import plot_run, read_curves

LOG = """epoch,round,step,train_loss_step,train_loss,val_acc
0,,9,0.7,,
0,1,1,,0.9,
0,1,1,,,0.25
1,2,2,,0.5,
1,2,2,,,0.75
1,2,2,,,0.5
"""


class Classes(FederatedDataModule):
    def __init__(self, *arguments: Any, classes: int = 4, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.classes = classes

    def load(self) -> Source:
        labels = np.arange(40) % self.classes
        return Source(TensorDataset(torch.zeros(40, 2), torch.from_numpy(labels)), labels)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    (tmp_path / "metrics.csv").write_text(LOG)
    return tmp_path


def test_curves_have_the_values_of_rounds_and_the_last_of_each(log_dir: Path) -> None:
    assert read_curves(log_dir) == {"train_loss": [(1, 0.9), (2, 0.5)], "val_acc": [(1, 0.25), (2, 0.5)]}
    # A run that was resumed after its first round has logged its second one twice.
    resumed = log_dir / "resumed"
    resumed.mkdir()
    (resumed / "metrics.csv").write_text("epoch,round,step,val_acc,val_mse\n1,2,2,0.625,4.0\n2,3,3,0.875,1.0\n")
    assert read_curves([log_dir, resumed]) == {
        "train_loss": [(1, 0.9), (2, 0.5)],
        "val_acc": [(1, 0.25), (2, 0.625), (3, 0.875)],
        "val_mse": [(2, 4.0), (3, 1.0)],
    }


@pytest.mark.parametrize("prefix", ["exp1", "2026-11-lr-0.1", "val"])
@pytest.mark.parametrize("counter", ["round", "epoch"])
def test_the_prefix_of_a_logger_is_no_part_of_the_names(tmp_path: Path, prefix: str, counter: str) -> None:
    logger = CSVLogger(tmp_path, prefix=prefix)
    first = 1 if counter == "round" else 0
    for place, accuracy in enumerate((0.25, 0.5), start=first):
        logger.log_metrics({"val_acc": accuracy, "warm-epoch": 3.0, counter: place}, step=place)
    logger.save()

    assert read_curves(logger.log_dir) == {"val_acc": [(1, 0.25), (2, 0.5)], "warm-epoch": [(1, 3.0), (2, 3.0)]}
    [panel] = plot_run(logger.log_dir).figure.axes
    assert [line.get_ydata().tolist() for line in panel.lines] == [[0.25, 0.5]]


def test_each_kind_of_value_has_a_panel(tmp_path: Path) -> None:
    rising = [n / 32 for n in range(1, 32)]
    columns = {"train_loss": [1.0] * 31, "val_loss": [2.0] * 31, "train_mse": rising, "fed/clients": [5.0] * 31}
    columns |= {"val_acc": rising, "val_acc_clients": [0.5] * 31, "val_acc_clients_std": [0.1] * 31, "test_acc": rising}
    data = Classes(IIDPartitioner(10), split=ClientSplit(5))
    data.setup()
    scores = {"val": {3: 0.5, 4: 0.25, 5: float("nan")}, "train": {}, "test": {0: 1.0, 1: 0.75, 2: 0.75}}
    picture = plot_run(with_log(tmp_path, columns), data, scores)
    assert repr(picture) == "RunPicture(5 panels; `.savefig(path)` writes it)"
    assert picture._repr_png_().startswith(b"\x89PNG")
    # In a set of clients the worst one is first, and the line is the mean; a score that is not finite is counted.
    assert_as_in(Path(__file__).with_name("run.txt"), drawn(picture.figure), tmp_path)


def test_many_metrics_and_classes(tmp_path: Path) -> None:
    names = ["val_mse", "val_mae", "test_rmse", "train_nll", "own_loss", "val_mse_clients", "val_mae_clients"]
    # There are four dashes and ten marks.
    names += [f"val_m{number}" for number in range(6)]
    data = Classes(IIDPartitioner(6), split=ClientSplit(5), classes=13)
    data.setup()
    columns = {name: [float(place)] for place, name in enumerate(names)}
    picture = plot_run(
        with_log(tmp_path, columns), data, {"val": {3: float("nan")}, "test": {2: 1.5}, "train": {0: 0.5}}
    )
    assert_as_in(Path(__file__).with_name("run_of_many.txt"), drawn(picture.figure), tmp_path)


def test_other_metrics_have_a_panel_of_their_own(tmp_path: Path) -> None:
    # of clients the mean alone: the last panel shows each
    log = "epoch,round,step,train_mse,val_rmse_clients,val_rmse_clients_min,val_rmse_clients_lowest10,fed/clients\n"
    (tmp_path / "metrics.csv").write_text(log + "0,1,1,4.0,2.0,1.0,3.0,5\n1,2,2,1.0,1.0,0.5,1.5,5\n")
    axes = plot_run(tmp_path, clients={"val": {0: 0.5, 1: 0.75}}).figure.axes
    assert [[line.get_label() for line in each.lines] for each in axes[:2]] == [
        ["training MSE"],
        ["validation RMSE (clients)"],
    ]
    assert [list(each.lines[0].get_ydata()) for each in axes[:2]] == [[4.0, 1.0], [2.0, 1.0]]  # type: ignore[arg-type]
    assert [each.get_ylabel() for each in axes] == ["MSE", "RMSE", "RMSE of the last evaluation"]
    several = {f"val_{name}": [0.5] for name in ("acc", "f1", "loss", "ce_loss", "mse", "r2", "mae")}
    panels = plot_run(with_log(tmp_path, several)).figure.axes
    assert [each.get_ylabel() for each in panels if each.axison] == ["score", "loss", "MSE", "R²", "MAE"]
    # an error below 1 is no share
    assert axes[2].get_ylim()[1] < 1
    assert "%" not in axes[2].yaxis.get_major_formatter()(0.5)


def test_central_training_is_drawn_over_epochs(tmp_path: Path) -> None:
    # epochs count from 0, and the test after two of them has epoch 2
    log = "epoch,step,train_loss_step,train_loss,val_acc,test_acc\n0,0,2.0,,,\n0,1,,,0.25,\n0,1,,0.9,,\n"
    (tmp_path / "metrics.csv").write_text(log + "1,3,,,0.5,\n1,3,,0.5,,\n2,4,,,,0.75\n")
    expected = {"train_loss": [(1, 0.9), (2, 0.5)], "val_acc": [(1, 0.25), (2, 0.5)], "test_acc": [(2, 0.75)]}
    assert read_curves(tmp_path) == expected
    accuracies, losses = plot_run(tmp_path).figure.axes
    assert (accuracies.get_xlabel(), losses.get_xlabel()) == ("epoch", "epoch")


def test_a_folder_without_a_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Trainer\(logger=CSVLogger\('runs'\)\)"):
        plot_run(tmp_path)
    with pytest.raises(ValueError, match="`log_dir`"):
        plot_run([])
    (tmp_path / "metrics.csv").write_text("epoch,round,step,lr\n0,1,1,0.5\n")
    with pytest.raises(ValueError, match="no loss, no accuracy and no other metric"):
        plot_run(tmp_path)


# ---- extreme values ----


def with_log(folder: Path, columns: dict[str, list[float]]) -> Path:
    """Write a log with a value of each column for each round."""
    rounds = zip(*columns.values(), strict=True)
    lines = [",".join(["round", *columns]), *(f"{n},{','.join(map(str, row))}" for n, row in enumerate(rounds, 1))]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    return folder


def texts(labels: list[Text]) -> list[str]:
    return [label.get_text() for label in labels]


def test_a_metric_without_a_finite_value_is_told(tmp_path: Path) -> None:
    nan = float("nan")
    columns = {"val_acc": [nan] * 5, "val_loss": [nan, nan, 1.0, nan, nan], "train_loss": [nan] * 5}
    picture = plot_run(with_log(tmp_path, columns))
    picture.figure.draw_without_rendering()
    accuracy, loss = picture.figure.axes
    assert texts(accuracy.texts) == ["validation accuracy: no finite value in 5 rounds"]
    assert accuracy.get_legend() is None
    assert len(accuracy.get_yticks()) == 0
    legend = loss.get_legend()
    assert legend is not None
    assert texts(legend.get_texts()) == ["training loss: not finite", "validation loss"]
    for axes in (accuracy, loss):  # all rounds, from the first one
        assert texts([tick for tick in axes.get_xticklabels() if 1 <= tick.get_position()[0] <= 5]) == list("12345")
        assert axes.get_xlim() == pytest.approx((0.8, 5.2))
