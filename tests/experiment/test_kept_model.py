"""A table with ``keep_models`` keeps the model that each cell has tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from experiment.conftest import Run, run_here
from helpers.small_table import small, spec

from fl_lightning.experiment import load_cell
from fl_lightning.experiment.files import read_csv

LOCAL = spec("fl_lightning.Local", clients_per_round=1.0, local_epochs=2)
WITHIN = spec("fl_lightning.WithinClientSplit", val=0.2, test=0.3)


def table_of(method: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a table of one cell of two rounds."""
    table = small(methods={"method": {"callback": method}}, trainer={"max_epochs": 2, "accelerator": "cpu"}, **changes)
    table["data"]["digits"]["datamodule"]["init_args"]["split"] = WITHIN
    return table


@pytest.mark.parametrize("select", ["best on validation", "last"])
def test_each_client_has_the_score_of_the_model_that_is_kept(tmp_path: Path, select: str) -> None:
    run = run_here(table_of(LOCAL, keep_models=True, select=select), tmp_path)
    cell = load_cell(run.cell())
    owners = cell.datamodule.eval_client_ids("test")
    # Pixels become floats when a batch is on the device.
    batches = [cell.datamodule.on_after_batch_transfer(batch, 0) for batch in cell.datamodule.test_dataloader()]
    images = torch.cat([batch[0] for batch in batches])
    labels = torch.cat([batch[1] for batch in batches])
    for row in read_csv(run.cell() / "clients.csv"):
        client = int(row["client"])
        weights = cell.client_model(client)
        mine = owners == client
        logits = images[mine].flatten(1) @ weights["layers.1.weight"].T + weights["layers.1.bias"]
        accuracy = (logits.argmax(1) == labels[mine]).double().mean()
        assert float(row["test_acc_personal"]) == pytest.approx(float(accuracy), abs=1e-6)


def test_a_checkpoint_of_weights_alone_is_kept_where_clients_have_no_models(tmp_path: Path) -> None:
    run = run_here(table_of(spec("fl_lightning.FedAvg", clients_per_round=2), keep_models=True), tmp_path)
    kept = torch.load(run.cell() / "model.ckpt", weights_only=True)
    assert not {"callbacks", "optimizer_states", "lr_schedulers"} & set(kept)
    assert kept["epoch"] + 1 == run.rows[0]["best_round"]
    cell = load_cell(run.cell())
    [tested] = cell.trainer.test(cell.model, cell.datamodule, verbose=False)
    assert tested["test_acc_clients"] == run.rows[0]["test_acc_clients"]


def test_a_resumed_cell_keeps_the_same_file(tmp_path: Path, faulty: None) -> None:
    callbacks = [spec("faulty.FailOnce", marker=str(tmp_path / "marker"), at_round=2)]
    table = table_of(LOCAL, keep_models=True, callbacks=callbacks)
    table["trainer"]["max_epochs"] = 3
    broken = run_here(table, tmp_path / "broken")
    assert broken.rows[0]["status"] == "failed"
    resumed = broken.again()
    whole = run_here(table, tmp_path / "whole")
    assert (resumed.cell() / "model.ckpt").read_bytes() == (whole.cell() / "model.ckpt").read_bytes()


def test_a_finished_table_gets_its_models_when_they_are_asked_for(finished: Run) -> None:
    asked = finished.again(keep_models=True)
    for before, after in zip(finished.rows, asked.rows, strict=True):
        assert {**after, "cell": ""} == {**before, "cell": ""}
    assert len(list(finished.folder.glob("cells/*/model.ckpt"))) == len(asked.rows)


def test_a_cell_without_a_kept_model_is_an_error_that_says_how_to_keep_it(finished_table: Run) -> None:
    with pytest.raises(FileNotFoundError, match="keep_models: true"):
        load_cell(finished_table.cell())
