"""Makes the report of a data module's partition, and writes and logs it."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from fl_lightning.arguments import check_count
from fl_lightning.atomic_file import atomic_file
from fl_lightning.data import FederatedDataModule
from fl_lightning.report.figure import draw_partition
from fl_lightning.report.page import render_page
from fl_lightning.report.png import as_png
from fl_lightning.report.summary import Features, PartitionSummary, labels_or_zeros, summarize

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 150
_WIDE = 8.0  # inches


@dataclass(frozen=True, eq=False)
class PartitionReport:
    """A federation's table and figure; ``print(report)`` shows the table.

    Attributes:
        summary: The facts and numbers.
        figure: The figure, a matplotlib figure that is not pyplot's.
        png: The figure as a PNG file's content.
        html: The page.
    """

    summary: PartitionSummary
    figure: Figure
    png: bytes
    html: str

    def __str__(self) -> str:
        return str(self.summary)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Path, Path]:
        """Write ``partition.png`` and ``partition.html`` into a folder, which is made if need be; return their paths.

        A file appears whole or not at all. Where the same report lies already, nothing is done.

        Raises:
            FileExistsError: If one of the files holds something else and ``overwrite`` is false.
        """
        contents = {
            Path(folder) / "partition.png": self.png,
            Path(folder) / "partition.html": self.html.encode("utf-8"),
        }
        new = {path: content for path, content in contents.items() if not _holds(path, content)}
        taken = [path for path in new if path.exists()]
        if taken and not overwrite:
            raise FileExistsError(
                f"{taken[0]} holds something other than this report. Choose another folder, or give `overwrite=True`."
            )
        for path, content in new.items():
            with atomic_file(path) as temporary:
                temporary.write_bytes(content)
        png, html = contents
        return png, html

    @rank_zero_only
    def log(self, logger: Logger) -> None:
        """Log the numbers as ``partition/...``; with Weights & Biases the figure and the page as well."""
        numbers = {f"partition/{name}": value for name, value in self.summary.numbers().items()}
        if not isinstance(logger, WandbLogger):
            logger.log_metrics(numbers, step=0)
            return
        import wandb
        from PIL import Image

        run = logger.experiment
        # the run's summary: a partition has no course over time to be plotted
        run.summary.update(numbers)
        run.log(
            {
                "partition/figure": wandb.Image(Image.open(io.BytesIO(self.png))),
                "partition/report": wandb.Html(self.html, inject=False),
            }
        )


def partition_report(
    datamodule: FederatedDataModule,
    out: str | os.PathLike[str] | None = None,
    *,
    features: Features | None = None,
    logger: Logger | None = None,
    max_clients: int = 100,
    overwrite: bool = False,
) -> PartitionReport:
    """Show how a data module shares its samples out among clients.

    The table has the number of clients and samples, the smallest, largest and mean size of a client and their standard
    deviation, the C-score (eq. (52)), the joint entropy (eq. (53)) and the skew of categorical features. The figure has
    the label distribution of each client and a histogram of sizes. They are taken over all clients of the partition,
    those that validate and test too.

    Args:
        datamodule: The data module, after ``prepare_data()`` and ``setup()``.
        out: Folder for ``partition.png`` and ``partition.html``; nothing is written if ``None``.
        features: Categorical features of the data set's samples, whole numbers: an array of shape (N, J), or arrays of
            shape (N,) by name. The data module's ``categorical_features``, with its ``categorical_names``, if ``None``
            and it has them.
        logger: A Lightning logger that gets the numbers, and if it is Weights & Biases' the figure and the page.
        max_clients: Most clients to draw one by one: the largest.
        overwrite: Whether to replace a different report in ``out``.

    Returns:
        The report; ``print`` shows its table.

    Raises:
        RuntimeError: If the data module is not set up.
        TypeError: If ``datamodule`` is no federated data module, or ``logger`` is no Lightning logger.
        ValueError: If a client has no samples, ``features`` are no categories or not one per sample, or ``max_clients``
            is below 1.
        FileExistsError: If ``out`` holds a different report and ``overwrite`` is false.
    """
    if not isinstance(datamodule, FederatedDataModule):
        raise TypeError(
            f"`datamodule` must be a FederatedDataModule, got {type(datamodule).__name__}. Tensors become one by "
            "TensorDataModule, labels and a Partition alone are described by partition_statistics."
        )
    if logger is not None and not isinstance(logger, Logger):
        raise TypeError(
            f"`logger` must be a Lightning logger, got {type(logger).__name__}. Give one, such as "
            "WandbLogger(project='fl-lightning'), or None."
        )
    check_count("max_clients", max_clients)
    summary = summarize(datamodule, features)
    labels = labels_or_zeros(datamodule)
    title = _title(summary)
    figure = draw_partition(datamodule.partition, labels, _names(datamodule, labels), max_clients, title)
    png = as_png(figure, _DPI)
    wide = bool(figure.get_size_inches()[0] > _WIDE)
    html = render_page(title, summary.rows(), png, wide=wide, classes=len(figure.axes) > 2)
    report = PartitionReport(summary, figure, png, html)
    if out is not None:
        report.save(out, overwrite=overwrite)
    if logger is not None:
        report.log(logger)
    return report


def _title(summary: PartitionSummary) -> str:
    numbers = summary.statistics
    title = f"{summary.data}: {numbers.num_samples:,} samples, {numbers.num_clients:,} clients"
    return f"{title}, C-score {numbers.c_score:.3f}" if summary.has_labels else title


def _names(datamodule: FederatedDataModule, labels: np.ndarray) -> list[str] | None:
    names = datamodule.class_names
    return None if names is None else [names[label] for label in np.unique(labels)]


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content
