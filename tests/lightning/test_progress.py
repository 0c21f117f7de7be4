"""Progress bars: one round fills the bar, and the client that trains is shown."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
from helpers.comparison import ValidatedClassifier, clients_of, samples, train_federatedly
from lightning.pytorch.callbacks import Callback, RichProgressBar, TQDMProgressBar

from fl_lightning import FedAvg, FedBuff
from fl_lightning.parts import PowerOfChoice

SIZES = (8, 3, 20)  # 2, 1 and 5 batches of 4


class Shown(ValidatedClassifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, prog_bar=True)
        return loss


def run(bar: Callback, **options: Any) -> L.Trainer:
    settings = {"max_epochs": 2, "val": samples(4), **options}
    callbacks = [bar] if settings.setdefault("enable_progress_bar", True) else []
    return train_federatedly(Shown(), clients_of(*SIZES), callbacks=callbacks, **settings)


class Noted(TQDMProgressBar):
    """Notes what the training bar tells in every round, and its state at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[tuple[float, float | None]] = []
        self.names: dict[int, str] = {}

    def on_train_batch_end(self, trainer: L.Trainer, *given: Any) -> None:
        self.names[trainer.current_epoch] = self.train_progress_bar.desc
        super().on_train_batch_end(trainer, *given)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.ends.append((self.train_progress_bar.n, self.train_progress_bar.total))
        super().on_train_epoch_end(trainer, pl_module)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_tqdm_fills_one_bar_a_round(capsys: pytest.CaptureFixture[str], executor: Any) -> None:
    bar = Noted()
    trainer = run(bar, algorithm=FedAvg(1.0, seed=0, executor=executor))
    assert bar.ends == [(8, 8), (8, 8)]
    assert "client" not in {**trainer.callback_metrics, **trainer.logged_metrics}
    shown = capsys.readouterr().out
    assert re.fullmatch(r"Round 2 of 2, [\d.]+ s left", bar.names[1])
    for text in ("Round 1 of 2", "Round 2 of 2"):
        assert re.search(text + r": 100%\|[^\r]*\| 8/8 [^\r]*client=3/3[^\r]*loss=", shown)


def test_the_time_that_is_left_is_that_of_the_latest_twenty_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    # the first round takes 1000 s, the others 10 s
    times = iter([0.0, *(1000.0 + 10 * number for number in range(23))])
    clock = SimpleNamespace(monotonic=lambda: next(times))
    monkeypatch.setattr("fl_lightning._lightning.logs.progress_bars.time", clock)
    run(bar := Noted(), max_epochs=23, limit_train_batches=1, val=None)
    # 22 rounds of 1000 s, 21 of 505 s, 3 of 1190 / 20 s, 2 and 1 of 10 s
    lefts = {0: "", 1: ", 6.1 h left", 2: ", 2.9 h left", 20: ", 3 min left", 21: ", 20 s left", 22: ", 10 s left"}
    assert {at: bar.names[at] for at in lefts} == {at: f"Round {at + 1} of 23{left}" for at, left in lefts.items()}


def test_tqdm_shows_every_client(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_lightning._lightning.loops.hooks.PROGRESS_BAR_SECONDS", 0.0)
    run(TQDMProgressBar())
    shown = re.findall(r"client=(\d/\d)", capsys.readouterr().out)
    assert list(dict.fromkeys(shown)) == ["1/3", "2/3", "3/3"]


def test_bars_are_drawn_at_most_every_tenth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            self.now += 0.04  # seconds a batch
            return self.now

    drawn: list[int] = []

    class Counts(TQDMProgressBar):
        def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Any:
            drawn.append(trainer.fit_loop.batch_idx)
            return super().get_metrics(trainer, pl_module)

    monkeypatch.setattr("fl_lightning._lightning.loops.hooks.time", Clock())
    run(Counts())
    # at 0.12, 0.24, and at the last batch; at 0.44, 0.56 and the last
    inside = [index for index in drawn if index != 7]
    assert inside == [2, 5, 2, 5]
    assert drawn.count(7) >= 2


def test_rich_fills_one_bar_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_lightning._lightning.loops.hooks.PROGRESS_BAR_SECONDS", 0.0)
    text = io.StringIO()
    ends: list[tuple[float, float | None, str]] = []

    class Rich(RichProgressBar):
        def on_train_batch_end(self, *given: Any) -> None:
            self.progress.refresh()
            super().on_train_batch_end(*given)

        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            task = self.train_progress_bar
            ends.append((task.completed, task.total, task.description))
            super().on_train_epoch_end(trainer, pl_module)

    bar = Rich(console_kwargs={"file": text, "force_terminal": True, "width": 200})
    run(bar)
    assert ends == [(8, 8, "Round 1 of 2"), (8, 8, "Round 2 of 2")]
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue())
    assert re.search(r"(?s)Round 2 of 2, [\d.]+ s left .*8/8 .*client:\s+3/3", plain)


def test_metrics_have_room_beside_the_rich_bar_on_a_terminal_of_80_columns() -> None:
    class Longer(Shown):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("val_f1_of_all_clients", 0.5, prog_bar=True)

    text = io.StringIO()
    bar = RichProgressBar(console_kwargs={"file": text, "force_terminal": True, "width": 80})
    settings: dict[str, Any] = {"enable_progress_bar": True, "max_epochs": 3, "val": samples(4)}
    train_federatedly(Longer(), clients_of(*SIZES), callbacks=[bar], **settings)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue()).splitlines()
    last = [line for line in lines if line.startswith("Round 3 of 3")][-1]
    # The first line of the metrics holds more than one of them.
    assert re.search(r"8/8 +client: +3/3 +\S+", last)
    assert len(last) <= 80


def test_an_asynchronous_rounds_bar_ends_at_the_batches_that_were_trained() -> None:
    # the round guesses 3 batches a client, the mean; its two results are of the clients with 1 and 2 batches
    def algorithm() -> FedBuff:
        return FedBuff(2, 2, speeds=[100, 90, 5], local_epochs=1, concurrency=3)

    ends: list[tuple[float, float | None]] = []

    class Rich(RichProgressBar):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            ends.append((self.train_progress_bar.completed, self.train_progress_bar.total))

    for bar in (noted := Noted(), Rich(console_kwargs={"file": io.StringIO()})):
        run(bar, algorithm=algorithm(), max_epochs=1)
    assert noted.ends == ends == [(3, 3)]


def test_a_fit_without_an_end_counts_its_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    run(TQDMProgressBar(), max_epochs=-1, max_steps=9)  # 8 steps a round
    assert re.findall(r"Round [^:\r]*(?=: 100%)", capsys.readouterr().out)[-1] == "Round 2"


def test_a_bar_of_its_own_shows_the_clients_that_are_scored(capsys: pytest.CaptureFixture[str]) -> None:
    for shown in (True, False):
        algorithm = FedAvg(sampler=PowerOfChoice(1, num_candidates=2), executor="sequential")
        run(TQDMProgressBar(), algorithm=algorithm, max_epochs=1, enable_progress_bar=shown)
        assert ("Scoring clients:   0%|          | 0/2 " in capsys.readouterr().err) == shown
