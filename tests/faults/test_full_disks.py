"""A disk that is full is an error before anything has changed, also for files that are mapped into memory."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.full_disk import limited_files
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer

from fl_lightning import FedAvg, FedDyn, TensorDataModule
from fl_lightning.experiment.callbacks import CurveRecorder
from fl_lightning.files import reserve
from fl_lightning.parts import ClientVectors, Federation, Layout

VALUES = 1024  # float32: 4 KiB a client


def test_vectors_without_room_are_an_error_and_stay_as_they_were(tmp_path: Path) -> None:
    store = ClientVectors(
        Federation(np.ones(40), torch.zeros(VALUES), Layout.of_parameters(VALUES), state_dir=tmp_path),
        torch.zeros(VALUES),
    )

    def hand_in(clients: range) -> None:
        for client in clients:
            store[client] = torch.full((VALUES,), float(client))
        store.commit()
        store.keep()

    with limited_files(100_000):  # the first file has 16 places, the next 32, which take 131,072 bytes
        hand_in(range(16))
        with pytest.raises(OSError, match="131,072 bytes") as error:
            hand_in(range(10, 20))
        assert error.value.filename == str(tmp_path)
        store.put_back()
    assert store.mean.tolist() == [120 / 40] * VALUES  # 0 + 1 + ... + 15
    assert [store[client][0].item() for client in (10, 15, 16, 19)] == [10, 15, 0, 0]
    hand_in(range(20))
    assert store.mean.tolist() == [190 / 40] * VALUES
    assert store[19][0].item() == 19


def vector_clients(number: int) -> TensorDataModule:
    ones = torch.ones(1, VALUES, dtype=torch.float64)
    return TensorDataModule([(ones, float(k) * ones) for k in range(number)], batch_size=None)


def test_a_fit_without_room_ends_with_an_error_at_the_rounds_start(tmp_path: Path) -> None:
    # 8 KiB a client: 16 places fit into 192 KiB, the 32 of the third round do not
    module, callback = Quadratic(0.5, [0.0] * VALUES), FedDyn(0.1, 8, state_dir=tmp_path, seed=1)
    trainer = quiet_trainer(max_epochs=9, callbacks=[callback])
    with limited_files(192 << 10), pytest.raises(OSError, match="262,144 bytes"):
        trainer.fit(module, datamodule=vector_clients(40))
    assert torch.equal(module.w.detach().flatten(), callback.algorithm.server.model)
    assert trainer.current_epoch > 0


@pytest.mark.parametrize("missing", ["nothing", "function", "support"])
def test_room_is_taken_on_the_disk_by_writing_where_the_system_cannot_reserve_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def refuse(*args: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    if missing == "function":
        monkeypatch.delattr(os, "posix_fallocate")
    elif missing == "support":
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    path = tmp_path / "mapped"
    path.write_bytes(b"head")
    with path.open("r+b") as file:
        reserve(file, 3_000_000, path)
        reserve(file, 10, path)
    assert path.stat().st_size == 3_000_000
    assert path.stat().st_blocks * 512 >= 3_000_000
    assert path.read_bytes() == b"head" + bytes(2_999_996)
    too_large = pytest.raises(OSError, match=r"needs 5,000,000 bytes: '.*mapped'")
    with path.open("r+b") as file, limited_files(4_000_000), too_large:
        reserve(file, 5_000_000, path)


def test_a_curve_without_room_keeps_its_rounds(tmp_path: Path) -> None:
    curve, checkpoint = tmp_path / "curve.jsonl", tmp_path / "last.ckpt"

    def fit(rounds: int, ckpt_path: Path | None = None) -> None:
        data = TensorDataModule(quadratic_clients([1.0, 1.0], [0.0, 1.0]), batch_size=None)
        recorder = CurveRecorder(curve)
        trainer = quiet_trainer(max_epochs=rounds, callbacks=[FedAvg(1.0, seed=1), recorder])
        trainer.fit(Quadratic(0.5), datamodule=data, ckpt_path=ckpt_path)
        if ckpt_path is None:
            trainer.save_checkpoint(checkpoint)

    fit(3)
    before = curve.read_bytes()
    with limited_files(20), pytest.raises(OSError, match="too large"):  # a line has 12 bytes or more
        fit(4, checkpoint)
    assert curve.read_bytes() == before
    fit(4, checkpoint)
    assert [json.loads(line)["round"] for line in curve.read_text().splitlines()] == [1, 2, 3, 4]
