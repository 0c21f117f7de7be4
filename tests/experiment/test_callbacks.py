"""The callbacks of a cell: its curve, the checkpoints from which it goes on, and pruning."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fl_lightning.experiment import callbacks
from fl_lightning.experiment.callbacks import CurveRecorder, KeepLast, Pruning
from fl_lightning.experiment.claims import Claim

MODULE: Any = None


def trainer(round: int, rounds: int = 27, **values: Any) -> Any:
    """Return what callbacks ask a Trainer for at the end of a round, which counts from 1."""
    return SimpleNamespace(current_epoch=round - 1, max_epochs=rounds, should_stop=False, **values)


def test_a_checkpoint_is_saved_from_time_to_time_and_the_one_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for number in (1, 2, 3):
        (tmp_path / f"last-{number}.ckpt").touch()
    saved: list[Any] = []
    checked: list[int] = []
    keep = KeepLast(Claim(tmp_path, 4), 10.0, "v2", lambda: checked.append(1))

    def end(round: int, seconds: float, should_stop: bool = False) -> int:
        now[0] += seconds
        at_end = trainer(round, save_checkpoint=lambda path, **options: saved.append((path, options)))
        at_end.should_stop = should_stop
        keep.on_train_epoch_end(at_end, MODULE)
        return len(saved)

    rounds = [(1, 9.0), (2, 1.0), (3, 9.0), (4, 2.0), (26, 10.0, True), (27, 10.0)]
    assert [end(*each) for each in rounds] == [0, 1, 1, 2, 2, 2]
    assert saved == 2 * [(tmp_path / "last-4.ckpt", {"weights_only": False})]
    assert len(checked) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["last-3.ckpt"]
    assert keep.state_dict() == {"seconds": 41.0, "codes": ["v2"]}
    # A fit that goes on counts the seconds before, and names each version of the code once.
    for before, codes in ((["v1"], ["v1", "v2"]), (["v2"], ["v2"]), (["v2", "v1"], ["v2", "v1", "v2"])):
        other = KeepLast(Claim(tmp_path, 4), 10.0, "v2", lambda: None)
        other.load_state_dict({"seconds": 5.0, "codes": before})
        now[0] += 1.0
        assert other.state_dict() == {"seconds": 6.0, "codes": codes}


@pytest.mark.parametrize("mode", ["max", "min"])
def test_asha_ends_a_fit_that_is_worse_than_the_best_third_after_a_ninth_of_the_rounds(
    tmp_path: Path, mode: str
) -> None:
    sign = 1 if mode == "max" else -1
    # Three fits before: one has failed, so that it has no curve, and one has validated in the third round alone.
    for fit, scores in (("a", ["0.1", "0.2", "0.3", "0.3"]), ("b", ["", "", "0.5", ""])):
        (tmp_path / fit).mkdir()
        lines = [f"{place},{score and sign * float(score)}" for place, score in enumerate(scores, start=1)]
        (tmp_path / fit / "curve.csv").write_text("\n".join(["round,val_acc", *lines]))
    order = {"pruner": "asha", "number": 4, "earlier": ["a", "failed", "b"]}
    config = {"monitor": "val_acc", "mode": mode, "trainer": {"max_epochs": 27}, "pruning": order}

    def played(scores: list[float | None], rounds: int = 27, behind: int = 0) -> tuple[int | None, float | None]:
        """Return the round after which a fit with these scores ends, and the score with which it was ended."""
        curve = CurveRecorder(tmp_path / "curve")
        pruning = Pruning(config, tmp_path, curve)
        assert pruning._trial.number == 4
        for round, score in enumerate(scores, start=1):
            curve.rounds.append({"round": round} if score is None else {"round": round, "val_acc": sign * score})
            if round <= behind:
                continue
            at_end = trainer(round, rounds)
            pruning.on_train_epoch_end(at_end, MODULE)
            if at_end.should_stop:
                return round, pruning.score
        return None, pruning.score

    assert played([0.9, None, 0.4, 0.9]) == (3, sign * 0.4)
    assert played([0.1, 0.1, 0.6, 0.1]) == (None, None)
    # A fit that goes on has some of its rounds behind it.
    assert played([0.9, 0.9, 0.4, 0.9], behind=3) == (4, sign * 0.4)
    # The last round ends the fit by itself.
    assert played([0.9, 0.9, 0.4], rounds=3) == (None, None)


def test_hyperband_ends_a_fit_after_a_ninth_or_a_third_of_the_rounds_or_never(tmp_path: Path) -> None:
    """By its number a fit is in one of three brackets, which look after 3 and 9, after 9, and after 27 of 27 rounds."""
    names = [f"fit {number}" for number in range(40)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "curve.csv").write_text("\n".join(["round,val_acc", *(f"{n},0.9" for n in range(1, 28))]))
    ends = set()
    for number in range(40, 60):
        order = {"pruner": "hyperband", "number": number, "earlier": names}
        config = {"monitor": "val_acc", "mode": "max", "trainer": {"max_epochs": 27}, "pruning": order}
        curve = CurveRecorder(tmp_path / "curve")
        pruning = Pruning(config, tmp_path, curve)
        at_end = trainer(1)
        while not at_end.should_stop and len(curve.rounds) < 27:
            at_end = trainer(len(curve.rounds) + 1)
            curve.rounds.append({"round": len(curve.rounds) + 1, "val_acc": 0.1})
            pruning.on_train_epoch_end(at_end, MODULE)
        ends.add(len(curve.rounds))
    assert ends == {3, 9, 27}
