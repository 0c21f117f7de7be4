"""DMOZ, the Open Directory Project: web pages in a hierarchy of topics, classified by the topic of the top level."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fl_lightning.data import FederatedDataModule, FederatedSplit, PartitionFunction, SampleSplit, Source, Split
from fl_lightning.datamodules.dmoz_cache import EncodedPages, encoded_pages, top_level
from fl_lightning.datamodules.files import as_path, resolve_data_dir, where_to_put
from fl_lightning.partitioners import Partition, TopicGraph, TopicGraphPartitioner, entropy_curve, pick_client_topics
from fl_lightning.settings import Count, Natural, check_arguments

_DUMP = "(12 March 2017; mirrors keep it), plain or gzipped with the suffix .gz"
_VECTORS = "GloVe's 6B vectors, 50 dimensions, of https://nlp.stanford.edu/data/glove.6B.zip"


class DMOZDataModule(FederatedDataModule):
    """Titles and descriptions of web pages, 12 classes, distributed among clients by topic (van Lier 2018).

    A client is a topic with at least ``min_samples`` pages that is connected with the other clients by relations
    (:func:`~fl_lightning.partitioners.pick_client_topics`; 1,984 clients in the thesis). In d_0 a page is at its own
    topic or the nearest client topic above it; in d_i it has made i random steps along relations, so that a larger i
    mixes the classes more; in d_iid it is at a random client. By default 30 % of the pages, stratified by client, are
    a global test set, and there is no validation set.

    A batch's inputs are the word vectors of title, separator and description, followed by zeros: float32, shape
    (n, max_tokens, 50), 8,250 numbers a page. In memory and on disk a page is the numbers of its 165 words;
    vectors are looked up on the device, a batch at a time. They are not trained.

    The dumps are read into memory once, in a few minutes, in ``prepare_data``; later starts map a cache of 660 bytes a
    page.

    Args:
        data_dir: Folder that holds ``dmoz/content.rdf.u8`` and ``dmoz/structure.rdf.u8``, plain or gzipped with the
            suffix ``.gz``, and ``glove/glove.6B.50d.txt``; if ``None`` the environment variable
            ``FL_LIGHTNING_DATA``, else ``data``.
        partitioner: Shares the samples out by their classes, in place of ``distribution``.
        distribution: i of d_i, or ``"iid"`` for d_iid.
        min_samples: Fewest pages of a topic to become a client, training and test pages together; see
            :func:`~fl_lightning.partitioners.pick_client_topics` for the exceptions.
        root: A topic whose connected component is taken, in place of the largest.
        exclude: Names of the top-level topics that are left out.
        max_tokens: Words of a page; longer texts are cut.
        cache_dir: Folder of the cache; ``dmoz/cache`` in ``data_dir`` if ``None``.
        split: As in :class:`~fl_lightning.data.FederatedDataModule`; its labels are the clients of d_0.
        **options: Further arguments of :class:`~fl_lightning.data.FederatedDataModule`.

    Raises:
        FileNotFoundError: At set-up, if a file is missing.
        RuntimeError: At set-up, if a file or the cache is damaged.
        ValueError: If an argument is out of range; at set-up, if no connected clients can be picked.

    Example:
        >>> data = DMOZDataModule("data", distribution=5, min_samples=20)
        >>> trainer.fit(module, datamodule=data)  # doctest: +SKIP
    """

    graph: TopicGraph
    """The client topics and their relations."""

    homes: np.ndarray
    """The client of each page in d_0, int64, shape (N,)."""

    found_by_setup = (*FederatedDataModule.found_by_setup, "graph", "homes")

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        partitioner: PartitionFunction | None = None,
        *,
        distribution: Natural | Literal["iid"] = 0,
        min_samples: Count = 200,
        root: str | None = None,
        exclude: Sequence[str] = ("World", "Regional", "News"),
        max_tokens: Count = 165,
        cache_dir: str | os.PathLike[str] | None = None,
        split: Split | None = None,
        **options: Any,
    ) -> None:
        if split is None:
            split = SampleSplit(val=0.0, test=0.3, seed=42, stratify=True)
        super().__init__(partitioner, split=split, **options)
        self.data_dir = resolve_data_dir(data_dir)
        self.distribution = distribution
        self.min_samples = min_samples
        self.root = root
        self.exclude = exclude
        self.max_tokens = max_tokens
        if cache_dir is None:
            self.cache_dir = self.data_dir / "dmoz" / "cache"
        else:
            self.cache_dir = as_path("cache_dir", cache_dir)
        check_arguments(self)
        self._tables: dict[torch.device, Tensor] = {}

    def prepare_data(self) -> None:
        """Read the dumps into the cache, unless they are there."""
        self._pages()

    def load(self) -> Source:
        """Map the pages' words, int32, shape (N, max_tokens), and pick the client topics."""
        pages = self._pages()
        page_topics = pages.page_topics.numpy()
        with_pages, topic_of_page, sizes = np.unique(page_topics, return_inverse=True, return_counts=True)
        paths = [pages.topics[number] for number in with_pages]
        counts = dict(zip(paths, sizes.tolist(), strict=True))
        relations = [(pages.topics[a], pages.topics[b]) for a, b in pages.relations.tolist()]
        self.graph = pick_client_topics(counts, relations, min_samples=self.min_samples, root=self.root)
        labels = [str(top_level(topic)) for topic in self.graph.topics]
        names, self._client_labels = np.unique(labels, return_inverse=True)
        self.homes = self.graph.homes(paths)[topic_of_page]
        self._tables[torch.device("cpu")] = pages.vectors
        classes = self._client_labels[self.homes]
        dataset = TensorDataset(pages.tokens, torch.from_numpy(classes))
        return Source(dataset, classes, class_names=names.tolist())

    def federate(self, source: Source) -> FederatedSplit:
        """Split the pages stratified by their clients in d_0, and distribute the training pages."""
        if self.partitioner is None:
            return self.split.apply(self.homes, TopicGraphPartitioner(self.graph, self.distribution))
        by_class = self.partitioner

        def partition(homes: np.ndarray) -> Partition:
            # A page has the class of its client in d_0: a topic and its ancestors have the same top level.
            return by_class(self._client_labels[homes])

        return self.split.apply(self.homes, partition)

    def entropies(self, steps: int = 100) -> tuple[np.ndarray, float]:
        """Return the joint entropy of client and class over the training pages, in nats (eq. (53)).

        Returns:
            The entropies of d_0, ..., ``d_steps``, float64, shape (steps + 1,), and the entropy of d_iid.
        """
        training = np.sort(np.concatenate(list(self.federated_split.train.values())))
        homes = self.homes[training]
        classes = self._client_labels[homes]
        curve = entropy_curve(self.graph, homes, classes, steps)
        iid = TopicGraphPartitioner(self.graph, "iid").clients(homes)
        [entropy_of_iid] = entropy_curve(self.graph, iid, classes, steps=0)
        return curve, float(entropy_of_iid)

    def preprocess(self, tokens: Tensor) -> Tensor:
        """Return the word vectors of a batch, float32, shape (n, max_tokens, dimensions)."""
        device = tokens.device
        if device not in self._tables:
            self._tables[device] = self._tables[torch.device("cpu")].to(device)
        return F.embedding(tokens, self._tables[device])

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Look up the words of a batch on its device; replaced inputs stay as they are."""
        if self.inputs_replaced:
            return batch
        x, *others = batch
        x = self.preprocess(x)
        # The precision plugin converted the batch's floats when there were none yet.
        if self.trainer is not None:
            x = self.trainer.precision_plugin.convert_input(x)
        return [x, *others]

    def _pages(self) -> EncodedPages:
        content = self._find("dmoz/content.rdf.u8", f"DMOZ's last dump of pages {_DUMP}")
        structure = self._find("dmoz/structure.rdf.u8", f"DMOZ's last dump of topics {_DUMP}")
        vectors = self._find("glove/glove.6B.50d.txt", _VECTORS)
        return encoded_pages(content, structure, vectors, self.exclude, self.max_tokens, self.cache_dir)

    def _find(self, name: str, what: str) -> Path:
        path = self.data_dir / name
        for candidate in (path, path.with_name(f"{path.name}.gz")):
            if candidate.exists():
                return candidate
        raise FileNotFoundError(
            f"There is no {path}. {where_to_put(what, path.parent)} For a trial, "
            "`fl_lightning.datamodules.dmoz_sample` makes up dumps."
        )
