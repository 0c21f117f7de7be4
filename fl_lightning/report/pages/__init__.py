"""HTML pages of reports: one template and one style for every table, figure and caption."""

from fl_lightning.report.pages.grid import Grid
from fl_lightning.report.pages.page import Page, Section
from fl_lightning.report.pages.picture import Picture, as_png

__all__ = ["Grid", "Page", "Picture", "Section", "as_png"]
