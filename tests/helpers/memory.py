"""A logger that keeps what it is given."""

from __future__ import annotations

from lightning.pytorch.loggers.logger import DummyLogger


class Memory(DummyLogger):
    """Keeps what was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        self.rows.append((step, dict(metrics)))

    def values(self, name: str) -> list[tuple[int, float]]:
        """Return (step, value) of every row that holds the metric."""
        return [(step, row[name]) for step, row in self.rows if name in row]
