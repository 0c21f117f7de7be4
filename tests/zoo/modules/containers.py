"""Batches in containers of all kinds, as data collators of transformers and others make them."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import CLASSES, Data, Entry, one_by_one, vectors, words
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


class OfNested(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, targets = batch
        return F.cross_entropy(self(x["left"] - x["right"][0]), targets["labels"])


class SequenceClassifier(Classifier):
    """Like models of transformers: keyword arguments in, a dictionary out."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, CLASSES))
        self.embeddings, self.encoder = nn.Embedding(10, 8), nn.Linear(8, 8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        mask = attention_mask[:, :, None].to(self.encoder.weight.dtype)
        hidden = torch.tanh(self.encoder(self.embeddings(input_ids)))
        logits = self.layers((hidden * mask).sum(1) / mask.sum(1))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return self(**batch)["loss"]


def padded(sizes: Sequence[int], dtype: torch.dtype) -> Data:
    """Return sentences whose batches are padded to their own longest one, as collators with padding do."""

    def collate(samples: list[Any]) -> BatchEncoding:
        longest = max(len(sentence) for sentence, _ in samples)
        ids = torch.stack([F.pad(sentence, (0, longest - len(sentence))) for sentence, _ in samples])
        labels = torch.stack([label for _, label in samples])
        return BatchEncoding({"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels})

    held = words(sizes, dtype).clients
    return Data([[(row[row != 0], label) for row, label in zip(*rows, strict=True)] for rows in held], collate)


class Text(str):
    kind: Any = None


def with_kind(holder: Any, kind: Any) -> Any:
    holder.kind = kind
    return holder


def of_kind(x: Tensor, y: Tensor, kind: Any) -> BatchEncoding:
    return with_kind(BatchEncoding({"x": x, "y": y}), kind)


class OfKind(Classifier):
    """Asks whether a batch is an odd client's: ``is_odd(what is beside its inputs and classes)``."""

    def __init__(self, is_odd: Callable[[Any], Any]) -> None:
        super().__init__()
        self.is_odd = is_odd

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self(batch["x"]), batch["y"] if "y" in batch else batch["odd"])
        return 0.5 * loss if self.is_odd(batch) else loss


def odd(name: str, make: Callable[[Tensor, Tensor, bool], Any], is_odd: Callable[[Any], Any]) -> Entry:
    """Return an entry with one odd client, of whose batches ``make(x, y, is the client odd)`` makes others."""

    def data(sizes: Sequence[int], dtype: torch.dtype) -> Data:
        def collate(samples: list[Any]) -> Any:
            x, y, clients = zip(*samples, strict=True)
            return make(torch.stack(x), torch.stack(y), clients[0] == 4)

        held = vectors(sizes, dtype).clients
        return Data([[(*row, k) for row in zip(*rows, strict=True)] for k, rows in enumerate(held)], collate)

    return Entry(name, lambda: OfKind(is_odd), data)


def noisy(sizes: Sequence[int], dtype: torch.dtype) -> Data:
    """Return data that are scaled by a generator, which all clients share."""
    rng = np.random.default_rng(0)
    return collated(lambda x, y, n: {"x": x * (1 + 0.3 * rng.random()), "labels": y})(sizes, dtype)


class PseudoLabels(Classifier):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0], self(batch[0]).argmax(1)


class MarksInputs(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0].requires_grad_()), batch[1])


ENTRIES = [
    Entry("batch is a BatchEncoding", OfDict, collated(lambda x, y, n: BatchEncoding({"x": x, "labels": y}))),
    Entry("transformers-like, padded batches", SequenceClassifier, padded, long=True),
    odd("other keys", lambda x, y, odd: {"x": x, "odd" if odd else "y": y}, lambda batch: "odd" in batch),
    odd(
        "batch has a text with an attribute",
        lambda x, y, odd: {"x": x, "y": y, "k": with_kind(Text("a"), odd)},
        lambda batch: batch["k"].kind,
    ),
    *one_by_one(odd("batch is a BatchEncoding with an attribute", of_kind, lambda batch: batch.kind)),
    Entry("data scaled by a generator", OfDict, noisy),
    *one_by_one(Entry("labels by the model itself", PseudoLabels)),
]
LONG = [
    Entry(
        "batch is a dict with strings", OfDict, collated(lambda x, y, n: {"x": x, "labels": y, "id": list(map(str, n))})
    ),
    Entry("batch is a dataclass", OfAttributes, collated(lambda x, y, n: Points(x, y))),
    Entry("batch is a named tuple", OfAttributes, collated(lambda x, y, n: Pair(x, y))),
    Entry("nested batch", OfNested, collated(lambda x, y, n: ({"left": x, "right": [x.flip(1), x]}, {"labels": y}))),
    odd("texts compared", lambda x, y, odd: {"x": x, "y": y, "id": str(odd)}, lambda batch: batch["id"] == "True"),
    *one_by_one(Entry("inputs that require gradients", MarksInputs)),
]
