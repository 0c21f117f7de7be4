"""Mistakes of a table: each is named, with where it is and what was got, before any work.

The messages are in ``mistakes.txt``, in the order of the tables, unless another library has written most of them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.by_client import table_of_clients
from helpers.small_table import F1, small, spec, with_data, with_methods
from helpers.written import all_told, assert_as_in, told

from fl_lightning.experiment import read_table
from fl_lightning.experiment.check import refuse_mistakes

FILE = Path(__file__).with_name("mistakes.txt")
PROX = "fl_lightning.FedProx"
TIMER = "lightning.pytorch.callbacks.Timer"
#: Makes these values ones that have an effect.
USED = {"values": {"used": ["$mu", "$m", "$gamma"]}}


def with_callback(*given: Any, **arguments: Any) -> dict[str, Any]:
    """Return the table with a method whose callback is given, or is FedProx with these arguments."""
    return with_methods(No={"callback": given[0] if given else spec(PROX, **arguments)})


def with_trainer(**trainer: Any) -> dict[str, Any]:
    return small(trainer={"max_epochs": 4, "accelerator": "cpu", **trainer})


def with_lightnings(name: str, **arguments: Any) -> dict[str, Any]:
    return small(callbacks=[spec(f"lightning.pytorch.callbacks.{name}", **arguments)])


def with_part(part: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the table with other arguments of the model or the data module."""
    table = small()
    table["data"]["digits"][part]["init_args"] |= arguments
    return table


def with_published(**source: Any) -> dict[str, Any]:
    return with_data(published={"A": source})


OWN = spec("faulty.OwnModel", in_features=3072, num_classes=10)
WITHOUT_FOLDS = with_part("datamodule", {"split": spec("fl_lightning.ClientSplit")})
#: What a table may not call: the folder is still there afterwards.
REMOVE = spec("shutil.rmtree", path="kept")
CALLS = [
    with_data(datamodule=REMOVE),
    with_part("datamodule", {"partitioner": REMOVE}),
    with_data(model=REMOVE),
    with_callback(REMOVE),
    small(callbacks=[REMOVE]),
    with_trainer(plugins=[REMOVE]),
    small(callbacks=[spec("faulty.TakesAnything", value=REMOVE)]),
]
ENTRIES = [
    small(seed=[1]),
    small(methods={}),
    small(methods={"A": {}}),
    small(methods={"A": 3}),
    small(methods=3),
    small(methods={" ": small()["methods"]["FedAvg"]}),
    small(data=[]),
    small(baseline="x"),
    small(select="best"),
    small(select="best on test"),
    small(folds=[1, 2], data=WITHOUT_FOLDS["data"]),
    small(name="a/b"),
    small(name=".."),
    small(seeds=[1, 1]),
    small(seeds=3),
    small(seeds=[2**32]),
    small(folds=[-1]),
    small(callbacks="x"),
    small(callbacks=["x"]),
    small(callbacks=[{"class_path": TIMER, "arguments": {}}]),
    small(trainer=["a"]),
    small(comparisons=["digits"]),
    small(trainer={"accelerator": "cpu"}),
    with_trainer(max_epochs=2.5),
    with_trainer(devices=2),
    with_trainer(strategy="ddp"),
    with_trainer(callbacks=[]),
    with_trainer(check_val_every_n_epoch=0),
    with_trainer(check_val_every_n_epoch=5),
    with_trainer(val_check_interval=0.5),
    with_lightnings("ModelCheckpoint", every_n_train_steps=2),
    with_lightnings("BackboneFinetuning", unfreeze_backbone_at_epoch=2),
    small(wandb={"mode": "offlin"}),
    with_data(validate_on_test="no"),
    with_data(validate_on_test=True),
    with_data(targets=[True]),
    with_data(score=3),
    with_data(score="test_nothing"),
    with_data(score="test_f1_clients", score_mode="max", model=OWN),
    with_data(stand_in=["x"]),
    with_data(score="test_accuracy"),
    with_data(score="val_acc_clients"),
    # FedAvg alone logs it, so RADFed is named.
    {**with_data(monitor="val_f1_clients"), "methods": with_methods(FedAvg={"callbacks": [F1]})["methods"]},
    with_data(curves=["val_loss", "val_f1"]),
    with_data(curves=["test_acc"]),
    with_data(curves=["val_f1_clients"]),
    with_data(metric={"name": "acc", "function": "math.pi"}),
    with_data(metric={"name": "f1"}),
    with_data(metric={"name": "acc", "function": "fl_lightning.metrics.accuracy", "nme": "acc"}),
    with_data(paper={"FedAvg": "x"}),
    with_data(paper=[3]),
    with_data(paper={"FedAvg": float("nan")}),
    with_data(published={"A": 3}),
    with_published(FedAvg=3.0),
    with_published(scores={"FedAvg": {"scor": 3.0}}),
    with_published(scores={"FedAvg": {"score": 3.0, "sd": -1.0}}),
    with_published(scores={"FedAvg": "x"}),
    with_published(scores={"FedAvg": {"score": "x"}}),
    with_published(scores={"RADFed": {"score": 3.0}, "FedAvg": {"score": 3.0, "sd": "x"}}),
    with_published(scores=3),
    with_published(scores={}, runs=0),
    with_published(scores={}, rounds=1.5),
    with_published(scores={}, select="best"),
]
PARTS = [
    with_data(model=["fl_lightning.models.MLPClassifier"]),
    with_data(model=spec("faulty.no_model")),
    with_data(model=spec("lightning.LightningModule")),
    with_data(model=spec("fl_lightning.models.LogisticRegressionClassifier", num_classes=10)),
    with_callback(PROX),
    with_callback(spec("lightning.pytorch.callbacks.ModelSummary")),
    with_callback(spec("fl_lightning.FedNothing")),
    with_callback(spec("fl_lightning.RadFed")),
    with_callback(spec(3)),  # type: ignore[arg-type]
    with_callback(mu=1, sampler=spec("nowhere.at.all")),
    with_callback({"class_path": PROX, "init_args": [1]}),
    with_callback({"class_path": PROX, "init_args": "x"}),
    with_callback(mu=-1),
    with_callback(mu=1, clients_per_rounds=2),
    with_callback(),
]
VALUES = [
    with_methods(FedAvg={"values": {"lr": "$nothing"}}),
    with_methods(FedAvg={"values": {"lr": "$grid.S"}}) | {"values": {"grid": {}}},
    with_methods(FedAvg={"values": {"lr": "$a"}}) | {"values": {"a": "$b", "b": "$a"}},
    with_methods(FedAvg={"tune": {"lt": [1, 2]}, "values": {"lu": 1}}, RADFed={"take": {"lv": "FedAvg"}}),
    with_methods(FedAvg={"take": {"gamma": "RADFed"}}) | USED,
    with_methods(FedAvg={"tune": "$grid"}) | {"values": {"grid": [0.1]}},
    with_methods(FedAvg={"tune": {"lr": []}}),
    with_methods(FedAvg={"tune": {"lr": 3}}),
    with_methods(FedAvg={"tune": {"lr": {"min": 0}}}),
    with_methods(FedAvg={"tune": {"lr": {"min": "a", "max": 1}}}),
    with_methods(FedAvg={"tune": {"lr": {"min": 0, "max": float("nan")}}}),
    with_methods(FedAvg={"tune": {"lr": {"min": 0.1, "max": 1.0}}}),
    small(tuning={"folds": 0}),
    small(tuning={"folds": [1, 1]}),
    small(tuning={"folds": []}),
    small(tuning={"search": "random"}),
    small(tuning={"search": "bayes"}),
    small(tuning={"pruner": "median"}),
    small(tuning={"at_once": 0}),
]
#: Several in one table.
SEVERAL = with_methods(FedProx={"callback": spec(PROX, mu="$mu"), "tune": {"mu": [-1, -2, 1]}})
SEVERAL["trainer"]["devices"] = 2
SEVERAL["data"]["digits"] |= {"score": "nope", "score_mode": "max"}
BY_SAMPLE = with_part("datamodule", {"split": spec("fl_lightning.SampleSplit", val=0.1, test=0.2)})
#: What is known when the data have been read.
OF_DATA = [
    with_callback(spec("fl_lightning.FedAvg", clients_per_round=500)),
    BY_SAMPLE,
    BY_SAMPLE | {"data": {"digits": {**BY_SAMPLE["data"]["digits"], "monitor": "val_acc", "score": "test_acc"}}},
    table_of_clients(["test"], select="best on validation"),
    table_of_clients(["test"], select="best on validation", among="virtual"),
    table_of_clients(["val"], select="last"),
    table_of_clients([], select="last", validate_on_test=True),
]
#: Parts of a table that it has not.
TAKES = with_methods(FedAvg={"take": {"lr": "RADFed", "mu": "RADFed"}}, RADFed={"values": {"lr": 0.1, "mu": 0.1}})
ONLY = [
    (small(), {"methods": ["FedProx"]}),
    (small(), {"data": ["mnist"]}),
    (small(), {"seeds": [1, 1]}),
    (TAKES | USED, {"methods": ["FedAvg"]}),
    (WITHOUT_FOLDS, {"folds": [2]}),
]
#: What other libraries say, or list.
BY_OTHERS = {
    "`wandb` has an unknown entry 'projekt'": small(wandb={"projekt": "x"}),
    "`fit`: RuntimeError: ": small(callbacks=2 * [{"class_path": TIMER}]),
    "Did you mean `max_epochs`": with_trainer(max_epoch=4),
    "`trainer` has an argument of another kind, .*'accelerator': ..": with_trainer(accelerator=[]),
    '"hidden"': with_data(model=spec("fl_lightning.models.MLPClassifier", hidden="wide")),
    "clients_per_round": with_callback(mu=1, clients_per_round="many"),
    "enable_checkpointing": with_trainer(enable_checkpointing=False),
    "in a cycle.*FedAvg": with_methods(FedAvg={"take": {"lr": "RADFed"}}, RADFed={"take": {"lr": "FedAvg"}}),
    "low <= high": with_methods(FedAvg={"tune": {"lr": {"min": 2, "max": 1}}}),
    "low > 0": with_methods(FedAvg={"tune": {"lr": {"min": 0, "max": 1, "log": True}}}),
    "`model` LogisticRegressionClassifier .*(64, 3, 32, 32).* 30x10": with_part("model", {"in_features": 30}),
    "`model` LogisticRegressionClassifier .*(64, 3, 32, 32).* out of": with_part("model", {"num_classes": 3}),
}


def test_mistakes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faulty: None) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kept").mkdir()

    def refuse(table: dict[str, Any], with_data: bool = False) -> str:
        return told(lambda: refuse_mistakes(read_table(table), with_data=with_data), tmp_path)

    lines = [refuse(table) for table in (*CALLS, *ENTRIES, *PARTS, *VALUES, SEVERAL)]
    lines += [refuse(table, with_data=True) for table in OF_DATA]
    assert Path("kept").exists()
    lines += [told(partial(read_table(table).only, **part), tmp_path) for table, part in ONLY]
    assert_as_in(FILE, lines, tmp_path)


@pytest.mark.parametrize("words", BY_OTHERS)
def test_mistakes_that_other_libraries_find_are_named(words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", "\\(").replace(")", "\\)")):
        refuse_mistakes(read_table(BY_OTHERS[words]), with_data=True)


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


FILES = [
    "- 1\n",
    "base: personal_fashon\n",
    "base: 3\n",
    "base: t.yaml\n",
    "include: [t.yaml]\n",
    "include: {grid: 3}\n",
    "baselines: {clients_per_round: 2}\nmethods: [FedAvg]\n",
    b"name: a\nmodel: \xff",
    "a: 1\nb: " + "[" * 500,
    "a: &a [*a]",
    "a: 1\nb: !!binary aGVsbG8=",
    BOMB,
]


def test_mistakes_of_a_file_are_named(tmp_path: Path) -> None:
    def read(content: str | bytes, folder: Path) -> object:
        (folder / "t.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_table(folder / "t.yaml")

    lines = all_told([partial(read, content) for content in FILES], tmp_path)
    assert_as_in(FILE.with_name("mistakes_of_files.txt"), lines, tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: 1\nb: [1\nc: 2\n", r"(?s)t\.yaml must be YAML: .*line 3, column 2"),
        ("a: 1\nb: {c: 1}\na: 3\n", "key a\n.*line 3"),
        ('name: "${ lr"\n', "YAML"),
        ("base: nowhere.yaml\n", r"There is no table nowhere\.yaml\. There are compression, .*, t\.yaml\."),
    ],
)
def test_mistakes_of_a_file_that_other_libraries_find_are_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "t.yaml").write_text(content)
    with pytest.raises((OSError, ValueError), match=message):
        read_table(tmp_path / "t.yaml")
