"""Batches in containers of all kinds, as data collators of transformers and others make them."""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
from collections import UserDict, namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import CLASSES, Data, Entry, alike, vectors, words
from zoo.modules.base import Classifier


class BatchEncoding(UserDict):
    """Like the one of transformers: a dictionary with attributes, which moves itself."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getstate__(self) -> Any:
        return {"data": self.data}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)

    def to(self, device: Any) -> BatchEncoding:
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


@dataclass
class Points:
    """A batch as a dataclass."""

    x: Tensor
    y: Tensor


Pair = namedtuple("Pair", ["x", "y"])


def collated(make: Callable[[Tensor, Tensor, list[int]], Any]) -> Callable[..., Data]:
    """Return data whose batches ``make`` makes of inputs, classes and the samples' numbers."""

    def collate(samples: list[Any]) -> Any:
        x, y = torch.stack([sample[0] for sample in samples]), torch.stack([sample[1] for sample in samples])
        return make(x, y, [sample[2] for sample in samples])

    def data(sizes: Sequence[int], dtype: torch.dtype) -> Data:
        held = vectors(sizes, dtype).clients
        return Data([[(*row, number) for number, row in enumerate(zip(*rows, strict=True))] for rows in held], collate)

    return data


class OfDict(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch["x"]), batch["labels"])


class OfAttributes(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch.x), batch.y)


class OfTriple(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y, _ = batch
        return F.cross_entropy(self(x), y)


class OfNested(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, targets = batch
        return F.cross_entropy(self(x["left"] - x["right"][0]), targets["labels"])


@dataclass
class ModelOutput:
    """What models of transformers return."""

    loss: Tensor
    logits: Tensor


class SequenceClassifier(nn.Module):
    """Like a model of transformers: keyword arguments in, loss and logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.encoder, self.classifier = nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> ModelOutput:
        mask = attention_mask[:, :, None].to(self.encoder.weight.dtype)
        hidden = torch.tanh(self.encoder(self.embeddings(input_ids)))
        logits = self.classifier((hidden * mask).sum(1) / mask.sum(1))
        return ModelOutput(F.cross_entropy(logits, labels), logits)


class TransformersStyle(Classifier):
    """Lightning's example for GLUE: ``outputs = self(**inputs)``."""

    def __init__(self) -> None:
        super().__init__(SequenceClassifier())

    def forward(self, **inputs: Any) -> Any:  # type: ignore[override]
        return self.layers(**inputs)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return self(**batch).loss

    def configure_optimizers(self) -> Any:
        no_decay = ["bias", "embeddings.weight"]
        named = list(self.layers.named_parameters())
        groups = [
            {"params": [p for n, p in named if not any(d in n for d in no_decay)], "weight_decay": 0.1},
            {"params": [p for n, p in named if any(d in n for d in no_decay)], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=1e-2, eps=1e-6)


def padded(sizes: Sequence[int], dtype: torch.dtype) -> Data:
    """Return sentences whose batches are padded to their own longest one, as collators with padding do."""

    def collate(samples: list[Any]) -> BatchEncoding:
        longest = max(len(sentence) for sentence, _ in samples)
        ids = torch.stack([F.pad(sentence, (0, longest - len(sentence))) for sentence, _ in samples])
        labels = torch.stack([label for _, label in samples])
        return BatchEncoding({"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels})

    held = words(sizes, dtype).clients
    return Data([[(row[row != 0], label) for row, label in zip(*rows, strict=True)] for rows in held], collate)


class Mapping(dict[str, Any]):
    """A dictionary with attributes."""

    kind: Any = None

    def to(self, device: Any) -> Mapping:
        return self


class Text(str):
    kind: Any = None


class Picture(Tensor):
    pass


class Kind(Enum):
    USUAL, ODD = "usual", "odd"


def with_kind(holder: Any, kind: Any) -> Any:
    holder.kind = kind
    return holder


class OfKind(Classifier):
    """Asks whether a batch is an odd client's: ``is_odd(what is beside its inputs and classes)``."""

    def __init__(self, is_odd: Callable[[Any], Any]) -> None:
        super().__init__()
        self.is_odd = is_odd

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self(batch["x"]), batch["y"] if "y" in batch else batch["odd"])
        return 0.5 * loss if self.is_odd(batch) else loss


def odd(name: str, make: Callable[[Tensor, Tensor, bool], Any], is_odd: Callable[[Any], Any], alone: str = "") -> Entry:
    """Return an entry with one odd client, of whose batches ``make(x, y, is the client odd)`` makes others."""

    def data(sizes: Sequence[int], dtype: torch.dtype) -> Data:
        def collate(samples: list[Any]) -> Any:
            x, y, clients = zip(*samples, strict=True)
            return make(torch.stack(x), torch.stack(y), clients[0] == 4)

        held = vectors(sizes, dtype).clients
        return Data([[(*row, k) for row in zip(*rows, strict=True)] for k, rows in enumerate(held)], collate)

    return Entry(name, lambda: OfKind(is_odd), data, alone=alone)


def marked(x: Tensor, odd: bool) -> Tensor:
    if odd:
        x.noisy = True  # type: ignore[attr-defined]
    return x


class Plain(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch["x"]), batch["y"])


def reads(name: str, make: Callable[[], Any], scale: Callable[[Any], float], **options: Any) -> Entry:
    """Return an entry whose data are scaled by what all clients share, and reading changes."""

    def data(sizes: Sequence[int], dtype: torch.dtype) -> Data:
        shared = make()
        held = vectors(sizes, dtype).clients

        def collate(samples: list[Any]) -> Any:
            return {
                "x": torch.stack([x for x, _ in samples]) * scale(shared),
                "y": torch.stack([y for _, y in samples]),
            }

        return Data([list(zip(*rows, strict=True)) for rows in held], collate)

    return Entry(name, Plain, data, **{"alone": "reading changes what clients share", **options})


def counted(shared: Any) -> float:
    shared.value += 1
    return 1 + shared.value % 5 / 5


def appended(shared: list[int]) -> float:
    shared.append(1)
    return 1 + len(shared) % 5 / 5


class PseudoLabels(Classifier):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0], self(batch[0]).argmax(1)


class ScalesByStep(Classifier):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] * (1 + 0.01 * self.global_step), batch[1]


class AsksForDevice(Classifier):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        weight = next(self.parameters())
        return batch[0].to(weight.device, weight.dtype) / len(weight), batch[1]


class SameMemory(Classifier):
    """Changes one of two tensors that have the same memory."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [batch[0], batch[0], batch[1]]

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        noised, clean, y = batch
        noised.add_(1.0)
        return F.cross_entropy(self(clean), y)


class MarksInputs(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0].requires_grad_()), batch[1])


ENTRIES = [
    Entry("batch is a dict", OfDict, collated(lambda x, y, n: {"x": x, "labels": y}), long=True),
    Entry(
        "batch is a dict with strings",
        OfDict,
        collated(lambda x, y, n: {"x": x, "labels": y, "id": list(map(str, n))}),
        long=True,
    ),
    Entry("batch with a list of numbers", OfTriple, collated(lambda x, y, n: (x, y, n)), long=True),
    Entry("batch with None", OfTriple, collated(lambda x, y, n: (x, y, None)), long=True),
    Entry("batch is a dataclass", OfAttributes, collated(lambda x, y, n: Points(x, y)), long=True),
    Entry("batch is a named tuple", OfAttributes, collated(lambda x, y, n: Pair(x, y)), long=True),
    Entry("batch is a UserDict", OfDict, collated(lambda x, y, n: UserDict({"x": x, "labels": y})), long=True),
    Entry("batch is a BatchEncoding", OfDict, collated(lambda x, y, n: BatchEncoding({"x": x, "labels": y}))),
    Entry(
        "nested batch",
        OfNested,
        collated(lambda x, y, n: ({"left": x, "right": [x.flip(1), x]}, {"labels": y})),
        long=True,
    ),
    Entry("transformers-like, padded batches", TransformersStyle, padded),
    Entry("labels by the model itself", PseudoLabels, alone="batches are made by weights"),
    Entry("batches scaled by the step", ScalesByStep, alone="reads shared counters", long=True),
    Entry("batches on the weights' device", AsksForDevice, long=True),
    Entry("same memory twice", SameMemory, alone="changes its batch"),
    Entry("inputs that require gradients", MarksInputs, alone="inputs require gradients", long=True),
    *alike(
        odd("other keys", lambda x, y, odd: {"x": x, "odd" if odd else "y": y}, lambda batch: "odd" in batch),
        odd("texts that are not read", lambda x, y, odd: {"x": x, "y": y, "id": str(odd)}, lambda batch: False),
        odd(
            "texts compared",
            lambda x, y, odd: {"x": x, "y": y, "id": str(odd)},
            lambda batch: batch["id"] == "True",
            alone="values beside tensors",
        ),
        odd(
            "numbers compared",
            lambda x, y, odd: {"x": x, "y": y, "k": 0.5 + odd},
            lambda batch: batch["k"] == 1.5,
            alone="values beside tensors",
        ),
        odd("None or a text", lambda x, y, odd: {"x": x, "y": y, "k": None if odd else "a"}, lambda b: b["k"] is None),
        odd("flags", lambda x, y, odd: {"x": x, "y": y, "k": odd}, lambda batch: batch["k"] is True),
        odd(
            "enumeration",
            lambda x, y, odd: {"x": x, "y": y, "k": Kind.ODD if odd else Kind.USUAL},
            lambda batch: batch["k"] is Kind.ODD,
        ),
        odd(
            "batch has a dictionary with an attribute",
            lambda x, y, odd: with_kind(Mapping(x=x, y=y), odd),
            lambda batch: batch.kind,
            alone="values beside tensors",
        ),
        odd(
            "batch has a text with an attribute",
            lambda x, y, odd: {"x": x, "y": y, "k": with_kind(Text("a"), odd)},
            lambda batch: batch["k"].kind,
            alone="values beside tensors",
        ),
        odd(
            "batch has a tensor with an attribute",
            lambda x, y, odd: {"x": marked(x, odd), "y": y},
            lambda batch: hasattr(batch["x"], "noisy"),
            alone="values beside tensors",
        ),
        odd(
            "subclass of tensors",
            lambda x, y, odd: {"x": x, "y": y, "k": x.as_subclass(Picture) if odd else x},
            lambda batch: isinstance(batch["k"], Picture),
            alone="values beside tensors",
        ),
        odd(
            "tensor that requires gradients",
            lambda x, y, odd: {"x": x, "y": y, "k": x.clone().requires_grad_(odd)},
            lambda batch: batch["k"].requires_grad,
            alone="inputs require gradients",
        ),
        odd(
            "what an object computes of its tensors",
            lambda x, y, odd: with_kind(Mapping(x=x, y=y), (x > 0).double().mean()),
            lambda batch: batch.kind > 0.5,
            "values beside tensors",
        ),
    ),
    *alike(
        reads("data scaled by a generator", lambda: np.random.default_rng(0), lambda rng: 1 + 0.3 * rng.random()),
        reads("data scaled by an iterator", lambda: itertools.cycle([1.0, 1.2, 0.8]), next),
        reads("data scaled by a list", list, appended),
        reads("data scaled by shared memory", lambda: multiprocessing.Value("i", 0), counted),
        reads("data scaled by a C integer", lambda: ctypes.c_int(0), counted),
        reads("data that keep what they have read", dict, lambda kept: kept.setdefault("scale", 1.5), alone=""),
    ),
]
