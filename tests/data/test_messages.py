"""Messages about data, models and what is watched show all values that are in them: each is provoked once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from helpers.toys import Quadratic, fit_clients, quadratic_clients
from PIL import Image
from torch import nn

import fl_lightning as fl
from fl_lightning import datamodules as sets
from fl_lightning import diagnostics as watchers
from fl_lightning import models, partitioners
from fl_lightning.data import Backdoor, ClassArrival, ClientSplit, LabelFlipping, SampleSplit, Source, WithinClientSplit
from fl_lightning.partitioners import IIDPartitioner, LimitedClassesPartitioner

X = torch.zeros(4, 3)
RAGGED = [[1], [1, 2]]
TWO_CLIENTS = [np.array([0, 1]), np.array([2, 3])]


def run(observer: Any, callback: Any = None, **options: Any) -> Any:
    return fit_clients(callback or fl.FedAvg(1.0), Quadratic(0.1), quadratic_clients([1.0], [1.0]), 1, observer)


def late(data: Any) -> Any:
    data.setup()
    return data


def table(folder: Path, **options: Any) -> None:
    rows = {"age": [1, 2], "risk": ["low", "high"], "site": ["a", "b"], "Unnamed: 0": [0, 1]}
    pd.DataFrame(rows).to_csv(folder / "t.csv", index=False)
    sets.TableDataModule(folder / "t.csv", "risk", "site", **options).load()


def hugging_face(folder: Path, inputs: str, label: str, mode: str = "I;16") -> None:
    kinds = {"image": datasets.Image(), "text": datasets.Value("string"), "site": datasets.Value("string")}
    features = datasets.Features({**kinds, "label": datasets.ClassLabel(names=["a", "b"])})
    content = {"image": [Image.new(mode, (2, 2))] * 2, "text": ["x", "y"], "site": ["s", "t"], "label": [0, -1]}
    datasets.Dataset.from_dict(content, features=features).save_to_disk(folder / "saved")
    sets.HuggingFaceDataModule(folder / "saved", inputs, label, "site").load()


def folder_with(folder: Path, *files: str) -> Path:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("")
    return folder


# fmt: off
#: What an error shows, in this order, and what is done for it, perhaps in a folder.
ERRORS: dict[str, Callable[[Path], Any]] = {
    "which is 4 | got 2 and 5": lambda _: ClientSplit(4, 2, val_fold=5),
    "is 7 | 3 clients": lambda _: ClientSplit(7).apply(9, IIDPartitioner(3)),
    "got 0.5 and 0.75": lambda _: WithinClientSplit(0.5, 0.75),
    "shape (2, 3)": lambda _: SampleSplit().apply(np.zeros((2, 3)), IIDPartitioner(2)),
    "`partitioner` | got 7": lambda _: SampleSplit().apply(9, 7),
    "`labels` | got float64 of shape (4, 1)": lambda _: IIDPartitioner(2)(np.zeros((4, 1))),
    "`labels` must": lambda _: Source(X, labels=RAGGED),
    "`clients` must": lambda _: Source(X, clients=RAGGED),
    "`labels_or_num_samples` must": lambda _: SampleSplit().apply(RAGGED, IIDPartitioner(2)),
    "`keys` must": lambda _: partitioners.NaturalPartitioner()(RAGGED),
    "`edges` must": lambda _: partitioners.TopicGraph(("a", "b"), RAGGED),
    "`counts` must": lambda _: partitioners.c_score(RAGGED),
    "`values` must": lambda _: partitioners.quantile_buckets(RAGGED, 2),
    "`class_counts` must": lambda _: partitioners.QPPartitioner(2).solve(RAGGED),
    "`features` must": lambda _: partitioners.FeatureQPPartitioner(2)([0, 1], RAGGED),
    "`features[a]` must": lambda _: partitioners.FeatureQPPartitioner(2)([0, 1], {"a": RAGGED}),
    "`num_clients` is 2,000 | 1,500 samples": lambda _: IIDPartitioner(2_000)([0] * 1_500),
    "0 to 3 | got [2, 2]": lambda _: LimitedClassesPartitioner(4, [2, 2]),
    "`dataset` | got 'abc'": lambda _: Source("abc"),
    "`dataset` | got []": lambda _: Source([]),
    "`dataset` | (4, 3), (2, 3)": lambda _: Source((X, X[:2])),
    "`labels` | shape (4,) | shape (2,)": lambda _: Source(X, labels=[0, 1]),
    "`clients` | got float64 with NaN": lambda _: Source(X, clients=[1.0, np.nan, 2.0, 3.0]),
    "`clients` | shape (4,) | shape (1,)": lambda _: Source(X, clients=["a"]),
    "`test_indices": lambda _: Source(X, test_indices=[0.5]),
    "`clients` of Backdoor | 0 to 1 | [7]": lambda _: Backdoor([0, 7]).apply(X, X[:, 0], TWO_CLIENTS),
    "`num_classes` | got 3 | from 2 to 5":
        lambda _: LabelFlipping([1], 3).apply(X, torch.tensor([0, 1, 5, 2]), TWO_CLIENTS),
    "`size=4` | 4 x 4 | float32 of shape (1, 3, 5)": lambda _: Backdoor([0], size=4).stamped(torch.zeros(2, 1, 3, 5)),
    "LabelFlipping | shape (2,) | (2, 1) | float32 of shape (2, 3)":
        lambda _: LabelFlipping([0], 3).apply(X, X, TWO_CLIENTS),
    "3 elements": lambda _: fl.TensorDataModule([(X, X, X)]).outputs_and_targets((X, X, X), X),
    "WithinClientSplit(val=0.3": lambda _: fl.TensorDataModule([(X, X)], val=(X, X), split=WithinClientSplit(0.3)),
    "FederatedDataModule": lambda _: fl.FederatedDataModule().load(),
    "'TensorDataModule' | 'odd'": lambda _: fl.TensorDataModule([(X, X)]).odd,
    "`poison_with`": lambda _: late(fl.TensorDataModule([(X, X)])).poison_with(LabelFlipping([0], 3)),
    "ClassArrival | `labels`": lambda _: ClassArrival(2).samples(0, TWO_CLIENTS, None),
    "`targets` | shape (2,) | shape (1,)":
        lambda _: sets.TorchDatasetDataModule([1, 2], IIDPartitioner(2), targets=[1]),
    "`test_targets` | shape (3,) | shape (1,)":
        lambda _: sets.TorchDatasetDataModule([1, 2], IIDPartitioner(2), test_dataset=[1, 2, 3], test_targets=[1]),
    "`clients` | shape (2,) | shape (1,)": lambda _: sets.TorchDatasetDataModule([1, 2], clients=[1]),
    "`test_targets` | `test_dataset`":
        lambda _: sets.TorchDatasetDataModule([1, 2], IIDPartitioner(2), test_targets=[1]),
    "Contribution": lambda _: watchers.Contribution().plot(),
    "Contribution needs validation": lambda _: run(watchers.Contribution()),
    "Timeline": lambda _: watchers.Timeline().plot(),
    "`crop_probability` | got 0.5": lambda _: sets.CIFAR10DataModule(crop_probability=0.5),
    "got [1, 2, 3]": lambda _: sets.CovertypeDataModule(class_counts=[1, 2, 3]),
    "covertype/covtype.data.gz | Put covtype.data.gz (from https:// | covertype, | `download=True`":
        lambda here: sets.CovertypeDataModule(here, download=False).load(),
    "no folder | none. Put | none/sketch/dog/1.png": lambda here: sets.DomainDataModule(here / "none").load(),
    "no images in / | endings .bmp, .jpeg, .jpg, .pgm, .png, .ppm, .tif, .tiff, .webp.":
        lambda here: sets.DomainDataModule(folder_with(here, "photo/cat/1.txt")).load(),
    "no patient.csv or patient.csv.gz in / | eicu or / | eicu/csv. Put eICU's tables (https:// | eicu, or":
        lambda here: sets.EICUDataModule(here).load(),
    "no whole MNIST in | here. Put train-images-idx3-ubyte | here/MNIST/raw | `download=True`":
        lambda here: sets.MNISTDataModule(here / "here", IIDPartitioner(2), download=False).load(),
    "'label' | saved | such as 1.": lambda here: hugging_face(here, "text", "label"),
    "'text' | saved | <U1": lambda here: hugging_face(here, "text", "site"),
    "'image' | mode 'I;16'": lambda here: hugging_face(here, "image", "site"),
    "`label` | got ['y']": lambda _: sets.HuggingFaceDataModule("x", "y", "y"),
    "play.md is not a play": lambda here: sets.plays.parse_markdown(folder_with(here, "play.md") / "play.md"),
    "`split` is a SampleSplit": lambda _: sets.ShakespeareDataModule(split=SampleSplit()),
    "source 'leaf' in | shakespeare. Put leaf/train/*.json":
        lambda here: sets.ShakespeareDataModule(here, source="leaf").load(),
    "`features` | got 'age' twice": lambda here: table(here, features=["age"], categorical=["age"]),
    "t.csv has | 'Unnamed: 0'": table,
    "Column 'site' | str": lambda here: table(here, features=["site"]),
    "`num_clients` is 2 | `train` = 3 | `test` = 1 | only 1.":
        lambda _: sets.CropSplit(2, 3, 1, sets.OrderedSplit(0.0, 0.5, 0)).apply(9, IIDPartitioner(1)),
    "`path` | .csv, .png, .pdf, .svg | got 'a.txt'": lambda _: watchers.Contribution("a.txt"),
    "got Redistribution(": lambda _: run(watchers.Contribution(), fl.RADFed(2)),
    "`path` | got 'a.txt'": lambda _: watchers.Timeline("a.txt"),
    "FedAvg has rounds": lambda _: run(watchers.Timeline()),
    "FedAsync logs": lambda _: run(watchers.VirtualTime(fl.VirtualClock()), fl.FedAsync(1)),
    "`momentum` | got 0.25": lambda _: models.LogisticRegressionClassifier(2, 2, momentum=0.25, optimizer="adam"),
    "`targets` | got 'tail' | 0, 2.":
        lambda _: models.add_lora(nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)), "tail"),
    "such as mobilenet_v2-b0353104.pth from https:// | a.pth. PyTorch says: ":
        lambda here: models.MobileNetV2Classifier(weights=folder_with(here, "a.pth") / "a.pth"),
    "`groups` | got 3": lambda _: models.ResNet18Classifier(groups=3),
}
# fmt: on


@pytest.mark.parametrize("values", ERRORS)
def test_errors(values: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError, OSError, AttributeError)) as error:
        ERRORS[values](tmp_path)
    rest = message = str(error.value)
    for value in values.split(" | "):
        assert value in rest, message
        rest = rest.partition(value)[2]


def test_warnings() -> None:
    with pytest.warns(UserWarning, match=r"`targets` match .* frozen: 1 \(MultiheadAttention\), 1.out_proj \("):
        models.add_lora(nn.Sequential(nn.Linear(2, 2), nn.MultiheadAttention(2, 1)), rank=1)
    told = r"monitor='val_loss'\) .* when val_loss rises to it, .* \"max\".*`mode=\"min\"`"
    with pytest.warns(UserWarning, match=told), pytest.warns(UserWarning, match=r"'val_loss' .*`target=0\.5`"):
        run(watchers.Communication(0.5, "val_loss"))
