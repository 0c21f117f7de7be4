"""SIGTERM and SLURM's requeue signal: all processes leave a fit together, within moments. Ctrl-C waits for a commit.

Lightning's own handler broadcasts from inside the signal, and its loops answer once a batch. In a round, processes
train unequal numbers of batches, so both would wait for each other forever. Here the handler only notes the signal. A
process that was signalled says so in the process group's store, where the others look between batches; no collective is
needed for that. All then meet at the next :meth:`StopRequests.agree`, a collective that they reach in any case, and
leave from there.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_prefixed_message

log = logging.getLogger(__name__)

STATUS_OF_SIGTERM = 143
"""Exit status of a program that SIGTERM ends, as a shell gives it: 128 and the signal's number."""
#: What a process was asked for; of several requests the largest counts.
_STOP = 1
_REQUEUE = 2
#: Seconds between two looks into the store, each of which takes about 0.1 ms.
_LOOK_EVERY = 0.2
#: Numbers of fits; the same on all processes, which make the same fits.
_fits = count()


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let Ctrl-C wait until what is done inside is complete; a second one interrupts it at once."""
    usual = signal.getsignal(signal.SIGINT)
    if not callable(usual) or threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []

    def wait(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, usual)
        waiting.append((signum, frame))

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if waiting:
        usual(*waiting[0])


class StopRequests:
    """Notes that this process, or another one, was asked to stop.

    Args:
        trainer: The trainer.

    Attributes:
        requeued: Whether SLURM's job was queued again, and will resume by itself.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._connector = trainer._signal_connector
        self._asked = 0
        self.requeued = False
        self._signum: Any = None
        #: Whether this process has told the others.
        self._told = False
        #: When this process last looked into the store.
        self._looked = 0.0
        #: Where processes tell each other; ``None`` for a single one, and before the fit.
        self._store: Any = None
        self._key = ""

    # ---- a fit ----

    def install(self) -> None:
        """Take the place of Lightning's handlers; call it before it registers them."""
        self._key = f"fl_lightning/stop/{next(_fits)}"
        self._connector.__dict__["_sigterm_notifier_fn"] = self._on_sigterm
        self._connector.__dict__["_slurm_sigusr_handler_fn"] = self._on_requeue

    def enter(self) -> None:
        """Begin the fit: the handlers are registered, and other uses of the trainer get Lightning's own again."""
        for name in ("_sigterm_notifier_fn", "_slurm_sigusr_handler_fn"):
            self._connector.__dict__.pop(name, None)
        if self._trainer.world_size > 1:
            self._store = torch.distributed.distributed_c10d._get_default_store()

    def requeue(self) -> None:
        """When SLURM asked for it, save its checkpoint and have the job queued again; call it on all processes."""
        if self._asked == _REQUEUE:
            self.requeued = True
            self._connector._slurm_sigusr_handler_fn(self._signum, None)  # type: ignore[arg-type]

    # ---- signals ----

    def _on_sigterm(self, signum: int, frame: FrameType | None) -> None:
        log.info(rank_prefixed_message(f"Received SIGTERM: {signum}", self._trainer.local_rank))
        launcher = self._trainer.strategy.launcher
        if not self._asked and launcher is not None:
            launcher.kill(signum)
        self._asked = max(self._asked, _STOP)
        # With several processes Lightning's loops would leave at once, each at a place of its own.
        if self._store is None:
            self._connector.received_sigterm = True

    def _on_requeue(self, signum: int, frame: FrameType | None) -> None:
        # A checkpoint that is written from within the handler could be one of a half-finished aggregation.
        self._asked = _REQUEUE
        self._signum = signum

    @contextmanager
    def taking_back(self, take_back: Callable[[], None]) -> Iterator[None]:
        """Call a function if what is done inside fails or is interrupted; Ctrl-C waits for its end."""
        try:
            yield
        except BaseException:
            with interrupts_wait():
                take_back()
            raise

    # ---- in a round ----

    def poll(self) -> None:
        """Break this process's work off if any process was asked to stop; no collective, so call it between batches.

        Raises:
            SIGTERMException: If one was. Go on to :meth:`agree`, where the other processes are or will come.
        """
        if not self._asked and self._store is not None:
            now = time.monotonic()
            if now - self._looked >= _LOOK_EVERY:
                self._looked = now
                self._asked = _STOP if self._store.check([self._key]) else 0
        if self._asked:
            self._tell()
            raise SIGTERMException

    def agree(self) -> None:
        """Stop on all processes if one was asked to; a collective.

        Raises:
            SIGTERMException: If one was.
        """
        agreed = self._asked
        if self._trainer.world_size > 1:
            asked = torch.tensor([self._asked], device=self._trainer.strategy.root_device)
            work = torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX, async_op=True)
            assert work is not None
            pause = 1e-5
            # Blocked in the collective, Python would run no handler, and the others would not hear of the signal.
            while not work.is_completed():
                if self._asked:
                    self._tell()
                time.sleep(pause)
                pause = min(2 * pause, 1e-3)
            work.wait()
            # A signal that has come in the meantime waits for the next time.
            agreed = int(asked)
        if agreed:
            self._asked = agreed
            self._connector.received_sigterm = True
            raise SIGTERMException

    def _tell(self) -> None:
        """Let the other processes know."""
        if self._store is not None and not self._told:
            self._told = True
            self._store.set(self._key, "1")
