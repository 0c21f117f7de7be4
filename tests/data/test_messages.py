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
from fl_lightning import datamodules, diagnostics, models
from fl_lightning.data import Backdoor, ClassArrival, ClientSplit, LabelFlipping, SampleSplit, Source, WithinClientSplit
from fl_lightning.partitioners import IIDPartitioner, LimitedClassesPartitioner

X = torch.zeros(4, 3)
TWO_CLIENTS = [np.array([0, 1]), np.array([2, 3])]


def run(observer: Any, callback: Any = None, **options: Any) -> Any:
    return fit_clients(callback or fl.FedAvg(1.0), Quadratic(0.1), quadratic_clients([1.0], [1.0]), 1, observer)


def late(data: Any) -> Any:
    data.setup()
    return data


def table(folder: Path, **options: Any) -> None:
    rows = {"age": [1, 2], "risk": ["low", "high"], "site": ["a", "b"], "Unnamed: 0": [0, 1]}
    pd.DataFrame(rows).to_csv(folder / "t.csv", index=False)
    datamodules.TableDataModule(folder / "t.csv", "risk", "site", **options).load()


def hugging_face(folder: Path, inputs: str, label: str, mode: str = "I;16") -> None:
    kinds = {"image": datasets.Image(), "text": datasets.Value("string"), "site": datasets.Value("string")}
    features = datasets.Features({**kinds, "label": datasets.ClassLabel(names=["a", "b"])})
    content = {"image": [Image.new(mode, (2, 2))] * 2, "text": ["x", "y"], "site": ["s", "t"], "label": [0, -1]}
    datasets.Dataset.from_dict(content, features=features).save_to_disk(folder / "saved")
    datamodules.HuggingFaceDataModule(folder / "saved", inputs, label, "site").load()


def folder_with(folder: Path, *files: str) -> Path:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("")
    return folder


#: What is done, and what its error shows, in this order.
ERRORS: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "folds": (lambda _: ClientSplit(4, 2, val_fold=5), ["which is 4", "got 2 and 5"]),
    "clients of folds": (lambda _: ClientSplit(7).apply(9, IIDPartitioner(3)), ["is 7", "3 clients"]),
    "shares": (lambda _: WithinClientSplit(0.5, 0.75), ["got 0.5 and 0.75"]),
    "a test part": (
        lambda _: SampleSplit(test="official").apply(9, IIDPartitioner(3), np.array([4, 12, 2])),
        ["`test_indices`", "0 to 8", "got 2 to 12"],
    ),
    "samples": (lambda _: SampleSplit().apply(np.zeros((2, 3)), IIDPartitioner(2)), ["shape (2, 3)"]),
    "a partitioner": (lambda _: SampleSplit().apply(9, 7), ["`partitioner`", "got 7"]),  # type: ignore[arg-type]
    "labels": (lambda _: IIDPartitioner(2)(np.zeros((4, 1))), ["`labels`", "got float64 of shape (4, 1)"]),
    "too few samples": (lambda _: IIDPartitioner(2_000)([0] * 1_500), ["`num_clients` is 2,000", "1,500 samples"]),
    "limited clients": (lambda _: LimitedClassesPartitioner(4, [2, 2]), ["0 to 3", "got [2, 2]"]),
    "a source": (lambda _: Source("abc"), ["`dataset`", "got 'abc'"]),  # type: ignore[arg-type]
    "an empty source": (lambda _: Source([]), ["`dataset`", "got []"]),  # type: ignore[arg-type]
    "rows": (lambda _: Source((X, X[:2])), ["`dataset`", "(4, 3), (2, 3)"]),  # type: ignore[arg-type]
    "labels of a source": (lambda _: Source(X, labels=[0, 1]), ["`labels`", "shape (4,)", "shape (2,)"]),  # type: ignore[arg-type]
    "clients": (lambda _: Source(X, clients=[1.0, np.nan, 2.0, 3.0]), ["`clients`", "got float64 with NaN"]),  # type: ignore[arg-type]
    "number of clients": (lambda _: Source(X, clients=["a"]), ["`clients`", "shape (4,)", "shape (1,)"]),  # type: ignore[arg-type]
    "a mask": (lambda _: Source(X, test_indices=[0.5]), ["`test_indices"]),  # type: ignore[arg-type]
    "clients of a poison": (
        lambda _: Backdoor([0, 7]).apply(X, X[:, 0], TWO_CLIENTS),
        ["`clients` of Backdoor", "0 to 1", "[7]"],
    ),
    "classes of a poison": (
        lambda _: LabelFlipping([1], 3).apply(X, torch.tensor([0, 1, 5, 2]), TWO_CLIENTS),
        ["`num_classes`", "got 3", "from 2 to 5"],
    ),
    "a stamp": (
        lambda _: Backdoor([0], size=4).stamped(torch.zeros(2, 1, 3, 5)),
        ["`size=4`", "4 x 4", "float32 of shape (1, 3, 5)"],
    ),
    "no classes": (
        lambda _: LabelFlipping([0], 3).apply(X, X, TWO_CLIENTS),
        ["LabelFlipping", "shape (2,)", "(2, 1)", "float32 of shape (2, 3)"],
    ),
    "three tensors": (lambda _: fl.TensorDataModule([(X, X, X)]).outputs_and_targets((X, X, X), X), ["3 elements"]),
    "a split and a set": (
        lambda _: fl.TensorDataModule([(X, X)], val=(X, X), split=WithinClientSplit(0.3)),
        ["WithinClientSplit(val=0.3"],
    ),
    "no load": (lambda _: fl.FederatedDataModule().load(), ["FederatedDataModule"]),
    "an attribute": (lambda _: fl.TensorDataModule([(X, X)]).odd, ["'TensorDataModule'", "'odd'"]),
    "before the set-up": (lambda _: fl.TensorDataModule([(X, X)]).num_clients, ["clients of TensorDataModule"]),
    "a late poison": (
        lambda _: late(fl.TensorDataModule([(X, X)])).poison_with(LabelFlipping([0], 3)),
        ["`poison_with`"],
    ),
    "arrival without classes": (lambda _: ClassArrival(2).samples(0, TWO_CLIENTS, None), ["ClassArrival", "`labels`"]),
    "targets": (
        lambda _: datamodules.TorchDatasetDataModule([1, 2], IIDPartitioner(2), targets=[1]),  # type: ignore[arg-type]
        ["`targets`", "shape (2,)", "shape (1,)"],
    ),
    "test targets": (
        lambda _: datamodules.TorchDatasetDataModule(
            [1, 2],  # type: ignore[arg-type]
            IIDPartitioner(2),
            test_dataset=[1, 2, 3],  # type: ignore[arg-type]
            test_targets=[1],
        ),
        ["`test_targets`", "shape (3,)", "shape (1,)"],
    ),
    "clients of a data set": (
        lambda _: datamodules.TorchDatasetDataModule([1, 2], clients=[1]),  # type: ignore[arg-type]
        ["`clients`", "shape (2,)", "shape (1,)"],
    ),
    "targets and no data set": (
        lambda _: datamodules.TorchDatasetDataModule([1, 2], IIDPartitioner(2), test_targets=[1]),  # type: ignore[arg-type]
        ["`test_targets`", "`test_dataset`"],
    ),
    "no contributions": (lambda _: diagnostics.Contribution().plot(), ["Contribution"]),
    "no validation": (lambda _: run(diagnostics.Contribution()), ["Contribution needs validation"]),
    "no timeline": (lambda _: diagnostics.Timeline().plot(), ["Timeline"]),
    "crops": (lambda _: datamodules.CIFAR10DataModule(crop_probability=0.5), ["`crop_probability`", "got 0.5"]),
    "counts of classes": (lambda _: datamodules.CovertypeDataModule(class_counts=[1, 2, 3]), ["got [1, 2, 3]"]),
    "no table of Covertype": (
        lambda folder: datamodules.CovertypeDataModule(folder, download=False).load(),
        ["covertype/covtype.data.gz", "Put covtype.data.gz (from https://", "covertype,", "`download=True`"],
    ),
    "no folder": (
        lambda folder: datamodules.DomainDataModule(folder / "none").load(),
        ["no folder", "none. Put", "none/sketch/dog/1.png"],
    ),
    "no images": (
        lambda folder: datamodules.DomainDataModule(folder_with(folder, "photo/cat/1.txt")).load(),
        ["no images in /", "endings .bmp, .jpeg, .jpg, .pgm, .png, .ppm, .tif, .tiff, .webp."],
    ),
    "no table of eICU": (
        lambda folder: datamodules.EICUDataModule(folder).load(),
        ["no patient.csv or patient.csv.gz in /", "eicu or /", "eicu/csv. Put eICU's tables (https://", "eicu, or"],
    ),
    "no images of MNIST": (
        lambda folder: datamodules.MNISTDataModule(folder / "here", IIDPartitioner(2), download=False).load(),
        ["no whole MNIST in", "here. Put train-images-idx3-ubyte", "here/MNIST/raw", "`download=True`"],
    ),
    "a class of -1": (lambda folder: hugging_face(folder, "text", "label"), ["'label'", "saved", "such as 1."]),
    "no numbers": (lambda folder: hugging_face(folder, "text", "site"), ["'text'", "saved", "<U1"]),
    "deep images": (lambda folder: hugging_face(folder, "image", "site"), ["'image'", "mode 'I;16'"]),
    "no inputs": (lambda _: datamodules.HuggingFaceDataModule("x", "y", "y"), ["`label`", "got ['y']"]),
    "no play": (
        lambda folder: datamodules.plays.parse_markdown(folder_with(folder, "play.md") / "play.md"),
        ["play.md is not a play"],
    ),
    "windows that overlap": (
        lambda _: datamodules.ShakespeareDataModule(split=SampleSplit()),
        ["`split` is a SampleSplit"],
    ),
    "no plays": (
        lambda folder: datamodules.ShakespeareDataModule(folder, source="leaf").load(),
        ["source 'leaf' in", "shakespeare. Put leaf/train/*.json"],
    ),
    "an input twice": (
        lambda folder: table(folder, features=["age"], categorical=["age"]),
        ["`features`", "got 'age' twice"],
    ),
    "an input without a name": (table, ["t.csv has", "'Unnamed: 0'"]),
    "a column of words": (
        lambda folder: table(folder, features=["site"]),
        ["Column 'site'", "str"],
    ),
    "stretches": (
        lambda _: datamodules.CropSplit(2, 3, 1, datamodules.OrderedSplit(0.0, 0.5, 0)).apply(9, IIDPartitioner(1)),
        ["`num_clients` is 2", "`train` = 3", "`test` = 1", "only 1."],
    ),
    "a file of contributions": (
        lambda _: diagnostics.Contribution("a.txt"),
        ["`path`", ".csv, .png, .pdf, .svg", "got 'a.txt'"],
    ),
    "rounds without a mean": (lambda _: run(diagnostics.Contribution(), fl.RADFed(2)), ["got Redistribution("]),
    "a picture": (lambda _: diagnostics.Timeline("a.txt"), ["`path`", "got 'a.txt'"]),
    "rounds in a timeline": (lambda _: run(diagnostics.Timeline()), ["FedAvg has rounds"]),
    "virtual time": (lambda _: run(diagnostics.VirtualTime(fl.VirtualClock()), fl.FedAsync(1)), ["FedAsync logs"]),
    "momentum": (
        lambda _: models.LogisticRegressionClassifier(2, 2, momentum=0.25, optimizer="adam"),
        ["`momentum`", "got 0.25"],
    ),
    "layers of adapters": (
        lambda _: models.add_lora(nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)), "tail"),
        ["`targets`", "got 'tail'", "0, 2."],
    ),
    "weights": (
        lambda folder: models.MobileNetV2Classifier(weights=folder_with(folder, "a.pth") / "a.pth"),
        ["such as mobilenet_v2-b0353104.pth from https://", "a.pth. PyTorch says: "],
    ),
    "groups": (lambda _: models.ResNet18Classifier(groups=3), ["`groups`", "got 3"]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str, tmp_path: Path) -> None:
    provoke, values = ERRORS[name]
    with pytest.raises((ValueError, TypeError, RuntimeError, OSError, AttributeError)) as error:
        provoke(tmp_path)
    rest = message = str(error.value)
    for value in values:
        assert value in rest, message
        rest = rest.partition(value)[2]


def test_warnings() -> None:
    with pytest.warns(UserWarning, match=r"`targets` match .* frozen: 1 \(MultiheadAttention\), 1.out_proj \("):
        models.add_lora(nn.Sequential(nn.Linear(2, 2), nn.MultiheadAttention(2, 1)), rank=1)
    told = r"monitor='val_loss'\) .* when val_loss rises to it, .* \"max\".*`mode=\"min\"`"
    with pytest.warns(UserWarning, match=told), pytest.warns(UserWarning, match=r"'val_loss' .*`target=0\.5`"):
        run(diagnostics.Communication(0.5, "val_loss"))
