"""Engines that start runners of a table elsewhere: as jobs of SLURM, or as tasks on a cluster of Ray."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_lightning.words import how_to_install


@dataclass(frozen=True)
class Engine:
    """Runners at work elsewhere.

    Attributes:
        jobs: One for each runner, with the methods ``done`` and ``result`` of a future.
        stop: Ends them.
        look: How a user sees what keeps runners from beginning.
    """

    jobs: Sequence[Any]
    stop: Callable[[], object]
    look: str

    def all_ended(self) -> bool:
        """Return whether no job is at work or waits for its turn; raise the error of a job then."""
        if not all(job.done() for job in self.jobs):
            return False
        for job in self.jobs:
            job.result()
        return True


def start_slurm(runner: Callable[[], object], number: int, folder: Path, options: Mapping[str, Any]) -> Engine:
    """Submit an array of jobs; submitit requeues one that is preempted or out of time.

    Args:
        runner: What each job calls.
        number: Number of jobs.
        folder: Folder of the results; the scripts and the output of the jobs are in its ``slurm``.
        options: Parameters of ``submitit.AutoExecutor``, and ``cluster``: ``"local"`` starts processes on this machine.
    """
    import submitit

    folder = folder / "slurm"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"cluster": "slurm", "slurm_max_num_timeout": 1000, "name": "fl-lightning", **options}
    executor = submitit.AutoExecutor(
        folder,
        cluster=settings.pop("cluster"),
        slurm_max_num_timeout=settings.pop("slurm_max_num_timeout"),
    )
    try:
        executor.update_parameters(**settings)
    except (NameError, TypeError) as error:
        # submitit so names an option that it does not know.
        raise ValueError(f"`engine_options`: {' '.join(str(error).split())}") from error
    with _errors_into(folder / "submitit.log"):
        jobs = executor.submit_array([runner] * number)

    def stop() -> None:
        for job in jobs:
            if not job.done():
                job.cancel(check=False)

    return Engine(jobs, stop, "`squeue --me` shows why jobs wait, and the folder slurm/ what they print.")


@contextmanager
def _errors_into(path: Path) -> Iterator[None]:
    """Let processes that are started in the block write their errors into a file.

    Without SLURM submitit starts a process for each job, and ends it by an interrupt, whose traceback says nothing.
    """
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with path.open("a", encoding="utf-8") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def start_ray(runner: Callable[[], object], number: int, folder: Path, options: Mapping[str, Any]) -> Engine:
    """Start tasks on a cluster; Ray starts the task of a node that is lost on another one.

    Args:
        runner: What each task calls.
        number: Number of tasks.
        folder: Folder of the results.
        options: ``address`` of the cluster, which this machine becomes without one, ``node_ip_address`` of the node
            that this process joins it by, and options of a remote function, such as ``num_cpus`` and ``num_gpus``,
            which may be a share.
    """
    import ray

    settings = {"address": None, "node_ip_address": None, "max_retries": -1, **options}
    address = settings.pop("address")
    node = settings.pop("node_ip_address")
    try:
        task = ray.remote(_call).options(**settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`engine_options`: {error}") from error
    joins = not ray.is_initialized()
    if joins:
        ray.init(address=address, _node_ip_address=node, log_to_driver=False)
    tasks = [task.remote(runner) for _ in range(number)]

    def stop() -> None:
        for each in tasks:
            ray.cancel(each, force=True)
        if joins:
            ray.shutdown()

    return Engine([each.future() for each in tasks], stop, "`ray status` shows what the cluster has free.")


def _call(runner: Callable[[], object]) -> None:
    runner()


def start_engine(
    name: str, runner: Callable[[], object], number: int, folder: Path, options: Mapping[str, Any]
) -> Engine:
    """Start a number of runners by an engine.

    Raises:
        RuntimeError: If its package is not installed.
    """
    start = start_slurm if name == "slurm" else start_ray
    try:
        return start(runner, number, folder, options)
    except ImportError as error:
        raise RuntimeError(f"`engine` {name!r} needs a package: {how_to_install(name)}") from error
