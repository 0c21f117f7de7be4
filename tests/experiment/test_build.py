from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Timer

from fl_lightning import RADFed
from fl_lightning.experiment import build
from fl_lightning.experiment.build import identity, make, references, substitute
from fl_lightning.metrics import weighted_f1


def test_references_become_values_of_any_type() -> None:
    values = {"lr": 0.1, "S": 15, "grid": {"mu": [0.1, 1]}, "rate": "$lr", "kind": {"class": "a.B"}}
    spec = {"a": "$lr", "b": ["$S", "$grid.mu", "$rate"], "c": "$$lr", "d": "$kind.class", "e": "costs $5", "f": None}
    found = {"a": 0.1, "b": [15, [0.1, 1], 0.1], "c": "$lr", "d": "a.B", "e": "costs $5", "f": None}
    assert substitute(spec, values) == found
    assert references(spec) == {"lr", "S", "grid", "rate", "kind"}


def test_classes_are_built_at_any_depth() -> None:
    server = {"class_path": "fl_lightning.parts.Mixing", "init_args": {"lr": 0.5}}
    method = make({"class_path": "fl_lightning.RADFed", "init_args": {"redistributions": 3, "server": server}})
    assert isinstance(method, RADFed)
    assert method.redistributions == 3
    assert make([{"object": "fl_lightning.metrics.weighted_f1"}, {"n": 1}]) == [weighted_f1, {"n": 1}]
    # what a function takes by keyword is built, too
    split = {"class_path": "fl_lightning.data.ClientSplit", "init_args": {"fold": 3}}
    given = {"name": "COVCLS-G", "split": split}
    named = make({"class_path": "fl_lightning.datamodules.CovertypeDataModule.named", "init_args": given})
    assert (named.standardize, named.split.fold) == ("global", 3)


NOTHING: list[int] = []


class Choosing:
    """Knows by a value of its own that an argument was not given, and takes any object as another."""

    def __init__(self, rate: float, sizes: list[int] = NOTHING, server: Any = None) -> None:
        self.rate = rate
        self.server = server
        self.was_given = sizes is not NOTHING


def test_arguments_that_a_spec_lacks_keep_their_defaults() -> None:
    server = {"class_path": "fl_lightning.parts.Mixing", "init_args": {"lr": 0.5}}
    made = make({"class_path": f"{__name__}.Choosing", "init_args": {"rate": 1, "server": server}})
    assert (made.rate, made.was_given, made.server.lr) == (1.0, False, 0.5)


def test_a_fit_has_what_the_runner_gives_below_what_the_table_gives(tmp_path: Path) -> None:
    given = {"max_epochs": 3, "accelerator": "cpu", "num_sanity_val_steps": 1, "devices": "1"}
    trainer = build.trainer({"trainer": given}, [Timer()], logger=False, default_root_dir=tmp_path)
    shown = {"sanity": trainer.num_sanity_val_steps, "rounds": trainer.max_epochs, "devices": trainer.num_devices}
    assert shown == {"sanity": 1, "rounds": 3, "devices": 1}
    assert {type(each).__name__ for each in trainer.callbacks} == {"Timer", "ModelCheckpoint"}
    assert build.trainer({"trainer": {"accelerator": "cpu"}}, [], logger=False).num_sanity_val_steps == 0
    method = build.method({"seed": 7, "callback": {"class_path": "fl_lightning.FedAvg"}})
    assert (method.settings.seed, method.executor) == (7, "sequential")
    own = {"class_path": "fl_lightning.FedAvg", "init_args": {"seed": 3, "executor": "vectorized"}}
    method = build.method({"seed": 7, "callback": own})
    assert (method.settings.seed, method.executor) == (3, "vectorized")
    metric = {"name": "acc", "function": "fl_lightning.metrics.accuracy"}
    shown_models = [build.metric({"metric": metric, "monitor": f"val_acc{end}"}) for end in ("_clients", "_personal")]
    assert [(each.name, each.always_personal) for each in shown_models] == [("acc", False), ("acc", True)]


def test_identity_depends_on_content_and_not_on_order() -> None:
    # the first 16 digits of the SHA-256 of {"a":1,"b":[true,null]}
    assert identity({"b": [True, None], "a": 1}) == "1cc69c7fa23616ca"
