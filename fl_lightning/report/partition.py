"""Makes the report of a partition, writes it and logs it."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from fl_lightning.arguments import check_bool, check_count, check_path
from fl_lightning.data import FederatedDataModule
from fl_lightning.files import atomic_file
from fl_lightning.partitioners import SampleFeatures
from fl_lightning.partitioners.notebook import in_frame
from fl_lightning.report.figure import draw_partition
from fl_lightning.report.pages import Grid, Page, Picture, Section, as_png
from fl_lightning.report.summary import PartitionSummary, summarize_partition
from fl_lightning.representation import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 150
_WIDE = 8.0  # inches; wider figures cannot be read in the width of a phone
_MEANINGS = (
    "C-score: mean over clients of the summed absolute differences between the class shares of the client and those of "
    "all samples; 0 if all clients have the same mix. Feature skew: the same for the values of a categorical feature. "
    "Joint entropy: the entropy of client and class. Standard deviation: of the population."
)


@dataclass(frozen=True, eq=False, repr=False)
class PartitionReport:
    """The table and the figure of a partition; ``print(report)`` shows the table, a notebook the page.

    Attributes:
        summary: The facts and numbers.
        figure: The matplotlib figure; pyplot does not know it, so that nobody has to close it.
        png: The figure, as the content of a PNG file.
        html: The page, as the content of an HTML file.
    """

    summary: PartitionSummary
    figure: Figure
    png: bytes
    html: str

    def __str__(self) -> str:
        return str(self.summary)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return in_frame(self.html)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Path, Path]:
        """Write ``partition.png`` and ``partition.html`` into a folder and return their paths.

        The folder is made if there is none. A file appears whole or not at all. A folder that holds the same report
        stays as it is.

        Raises:
            FileExistsError: If one of the files has another content and ``overwrite`` is false.
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
        """Log the numbers as ``partition/...``; a Weights & Biases logger gets the figure and the page too."""
        numbers = {f"partition/{name}": value for name, value in self.summary.numbers().items()}
        if not isinstance(logger, WandbLogger):
            logger.log_metrics(numbers, step=0)
            return
        import wandb
        from PIL import Image

        run = logger.experiment
        # into the summary of the run: a partition has no course over time that could be plotted
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
    features: SampleFeatures | None = None,
    logger: Logger | None = None,
    max_clients: int = 100,
    overwrite: bool = False,
) -> PartitionReport:
    """Report the partition of a data module: the samples of each client, in numbers and as a figure.

    The table has the number of clients and samples, the smallest, largest and mean size of a client and their standard
    deviation, the C-score (eq. (52)), the joint entropy (eq. (53)) and the skew of categorical features. The figure has
    the label distribution of each client and a histogram of sizes. Both include the clients of validation and test.

    Equations are numbered as in ``docs/references.md``.

    Args:
        datamodule: The data module, after ``prepare_data()`` and ``setup()``.
        out: Folder for ``partition.png`` and ``partition.html``; ``None`` writes no files.
        features: Categorical features of all samples, as whole numbers: an array of shape (N, J), or arrays of shape
            (N,) by name. ``None`` takes ``categorical_features`` and ``categorical_names`` of the data module, if it
            has them.
        logger: A Lightning logger for the numbers; a Weights & Biases logger gets the figure and the page too.
        max_clients: Number of clients that are drawn one by one; these are the largest ones.
        overwrite: Whether another report in ``out`` may be replaced.

    Returns:
        The report; ``print`` shows its table.

    Raises:
        RuntimeError: If the data module is not set up.
        TypeError: If ``datamodule`` is not a federated data module, or ``logger`` is not a Lightning logger.
        ValueError: If a client has no samples, if ``features`` are not categories or not one for each sample, or if
            ``max_clients`` is below 1.
        FileExistsError: If ``out`` holds another report and ``overwrite`` is false.
    """
    _check_module_and_logger(datamodule, logger)
    check_count("max_clients", max_clients)
    check_bool("overwrite", overwrite)
    if out is not None:
        check_path("out", out)
    summary = summarize_partition(datamodule, features)
    title = _title(summary)
    names = datamodule.present_class_names
    figure = draw_partition(datamodule.partition, datamodule.labels, names, max_clients, title)
    png = as_png(figure, _DPI)
    report = PartitionReport(summary, figure, png, _page(title, summary, figure, png).to_html())
    if out is not None:
        report.save(out, overwrite=overwrite)
    if logger is not None:
        report.log(logger)
    return report


def _check_module_and_logger(datamodule: object, logger: object) -> None:
    if not isinstance(datamodule, FederatedDataModule):
        raise TypeError(
            f"`datamodule` must be a FederatedDataModule, got {type(datamodule).__name__}. Wrap tensors in a "
            "TensorDataModule. If there are only labels and a Partition, call partition_statistics."
        )
    if logger is not None and not isinstance(logger, Logger):
        raise TypeError(
            f"`logger` must be a Lightning logger or None, got {type(logger).__name__}. Give for instance "
            "WandbLogger(project='fl-lightning')."
        )


def _page(title: str, summary: PartitionSummary, figure: Figure, png: bytes) -> Page:
    rows = [[name, text] for name, text in summary.rows().items()]
    facts = Grid("partition", "", (), rows, text_columns=(0, 1), note=_MEANINGS)
    if len(figure.axes) > 2:
        caption = "Top: samples of each class on each client. Middle: class shares of each client. Bottom: number of "
    else:
        caption = "Top: samples of each client. Bottom: number of "
    wide = bool(figure.get_size_inches()[0] > _WIDE)
    picture = Picture("partition", f"{caption}clients of each size.", png, wide)
    return Page(title, [Section("Numbers", grids=[facts]), Section("Clients", pictures=[picture])])


def _title(summary: PartitionSummary) -> str:
    numbers = summary.statistics
    title = f"{summary.data}: {counted(numbers.num_samples, 'sample')}, {counted(numbers.num_clients, 'client')}"
    return f"{title}, C-score {numbers.c_score:.3f}" if numbers.has_classes else title


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content
