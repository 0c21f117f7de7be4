"""Batches in containers of all kinds, as data collators of transformers and others make them."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import CLASSES, Data, Entry, vectors, words
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


class ByText(Classifier):
    """Weighs a batch by its texts."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        weights = torch.tensor([1.0 + text.count("1") for text in batch["text"]], dtype=batch["x"].dtype)
        losses = F.cross_entropy(self(batch["x"]), batch["labels"], reduction="none")
        return (weights * losses).mean()


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


ENTRIES = [
    Entry("batch is a dict", OfDict, collated(lambda x, y, n: {"x": x, "labels": y})),
    Entry(
        "batch is a dict with strings", OfDict, collated(lambda x, y, n: {"x": x, "labels": y, "id": list(map(str, n))})
    ),
    Entry("strings that matter", ByText, collated(lambda x, y, n: {"x": x, "labels": y, "text": list(map(str, n))})),
    Entry("batch with a list of numbers", OfTriple, collated(lambda x, y, n: (x, y, n))),
    Entry("batch with None", OfTriple, collated(lambda x, y, n: (x, y, None))),
    Entry("batch is a dataclass", OfAttributes, collated(lambda x, y, n: Points(x, y))),
    Entry("batch is a named tuple", OfAttributes, collated(lambda x, y, n: Pair(x, y))),
    Entry("batch is a UserDict", OfDict, collated(lambda x, y, n: UserDict({"x": x, "labels": y}))),
    Entry("batch is a BatchEncoding", OfDict, collated(lambda x, y, n: BatchEncoding({"x": x, "labels": y}))),
    Entry("nested batch", OfNested, collated(lambda x, y, n: ({"left": x, "right": [x.flip(1), x]}, {"labels": y}))),
    Entry("transformers-like, padded batches", TransformersStyle, padded),
]
