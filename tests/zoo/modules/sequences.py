"""Networks for sequences: transformers with masks, recurrent networks, embeddings."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import CLASSES, UNEQUAL, Entry, one_by_one, words
from zoo.modules.base import Classifier


class TransformerEncoder(Classifier):
    """PyTorch's encoder with a padding mask."""

    dropout = 0.0

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, CLASSES))
        self.embedding = nn.Embedding(10, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=self.dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        padding = x == 0
        hidden = self.encoder(self.embedding(x), src_key_padding_mask=padding)
        kept = (~padding)[:, :, None].to(hidden.dtype)
        return F.cross_entropy(self.layers((hidden * kept).sum(1) / kept.sum(1)), y)


class TransformerWithDropout(TransformerEncoder):
    dropout = 0.1


class LanguageModel(Classifier):
    """A small GPT: causal attention, tied input and output weights, no loss for padding."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 8))
        self.embedding, self.qkv, self.norm = nn.Embedding(10, 8), nn.Linear(8, 24), nn.LayerNorm(8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        hidden = self.embedding(x[:, :-1])
        query, key, value = self.qkv(self.norm(hidden)).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        logits = self.head(hidden + F.silu(self.layers(mixed)))
        return F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten(), ignore_index=0)


class Embedded(Classifier):
    """The mean of a sentence's embeddings."""

    def __init__(self, **options: Any) -> None:
        super().__init__(nn.Linear(4, CLASSES))
        self.embedding = nn.Embedding(10, 4, **options)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.layers(self.embedding(x).mean(1)), y)


ENTRIES = [
    Entry("TransformerEncoder with dropout", TransformerWithDropout, words, tolerance=1e-05, long=True),
    Entry("causal language model, tied weights", LanguageModel, words, sizes=UNEQUAL, long=True),
]
LONG = [*one_by_one(Entry("embedding with max_norm", lambda: Embedded(max_norm=0.5), words))]
