"""The picture of a run, from a CSV log whose rows are written here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
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
    def load(self) -> Source:
        labels = np.arange(40) % 4
        return Source(TensorDataset(torch.zeros(40, 2), torch.from_numpy(labels)), labels)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    (tmp_path / "metrics.csv").write_text(LOG)
    return tmp_path


def test_curves_have_the_values_of_rounds_and_the_last_of_each(log_dir: Path) -> None:
    assert read_curves(log_dir) == {"train_loss": [(1, 0.9), (2, 0.5)], "val_acc": [(1, 0.25), (2, 0.5)]}


def test_each_kind_of_value_has_a_panel(log_dir: Path) -> None:
    data = Classes(IIDPartitioner(10), split=ClientSplit(5))
    data.setup()
    figure = plot_run(log_dir, data, {"val": {3: 0.5, 4: 0.25}, "test": {}})
    assert repr(figure) == "RunPicture(4 panels; `.savefig(path)` writes it)"
    assert figure._repr_png_().startswith(b"\x89PNG")
    clients, accuracies, losses, scores = figure.figure.axes
    # in one line they would touch
    assert [text.get_text() for text in clients.texts] == ["train\n(6)", "validation\n(2)", "test\n(2)"]
    assert (accuracies.get_ylabel(), losses.get_ylabel()) == ("accuracy", "loss")
    [line] = accuracies.lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([1, 2], [0.25, 0.5])  # type: ignore[arg-type]
    # the worst client first, and the mean as a line
    assert [label.get_text() for label in scores.get_xticklabels()] == ["4", "3"]
    assert list(scores.lines[0].get_ydata()) == [0.375, 0.375]  # type: ignore[arg-type]


def test_other_metrics_have_a_panel_of_their_own(tmp_path: Path) -> None:
    log = "epoch,round,step,train_mse,val_rmse_clients,val_rmse_clients_min,val_rmse_clients_max,fed/clients\n"
    (tmp_path / "metrics.csv").write_text(log + "0,1,1,4.0,2.0,1.0,3.0,5\n1,2,2,1.0,1.0,0.5,1.5,5\n")
    axes = plot_run(tmp_path, clients={"val": {0: 0.5, 1: 0.75}}).figure.axes
    assert [[line.get_label() for line in each.lines] for each in axes[:2]] == [
        ["training mse"],
        ["validation rmse (clients)"],
    ]
    assert [list(each.lines[0].get_ydata()) for each in axes[:2]] == [[4.0, 1.0], [2.0, 1.0]]  # type: ignore[arg-type]
    assert [each.get_ylabel() for each in axes] == ["mse", "rmse", "rmse of the last evaluation"]
    # an error below 1 is no share
    assert axes[2].get_ylim()[1] < 1
    assert "%" not in axes[2].yaxis.get_major_formatter()(0.5)


def test_many_other_metrics_share_a_panel(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("epoch,round,step,val_a,val_b,val_c,val_d\n0,1,1,1.0,2.0,3.0,4.0\n")
    [metrics] = plot_run(tmp_path).figure.axes
    assert (len(metrics.lines), metrics.get_ylabel()) == (4, "value")


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
    (tmp_path / "metrics.csv").write_text("epoch,round,step,lr\n0,1,1,0.5\n")
    with pytest.raises(ValueError, match="no loss, no accuracy and no other metric"):
        plot_run(tmp_path)
