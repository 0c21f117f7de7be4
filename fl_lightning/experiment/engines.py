"""Engines that start runners of a table elsewhere: as jobs of SLURM, or as tasks on a cluster of Ray."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Slurm:
    """An array of jobs; submitit requeues one that is preempted or out of time.

    Args:
        runner: What each job calls.
        number: Number of jobs.
        folder: Folder for the scripts and the output of the jobs.
        options: Parameters of ``submitit.AutoExecutor``, and ``cluster``: ``"local"`` starts processes on this machine.
    """

    def __init__(self, runner: Callable[[], object], number: int, folder: Path, options: Mapping[str, Any]) -> None:
        import submitit

        settings = {"cluster": "slurm", "slurm_max_num_timeout": 1000, "name": "fl-lightning", **options}
        first = {name: settings.pop(name) for name in ("cluster", "slurm_max_num_timeout")}
        executor = submitit.AutoExecutor(folder / "slurm", **first)
        executor.update_parameters(**settings)
        self._jobs = executor.submit_array([runner] * number)

    def all_ended(self) -> bool:
        """Return whether no job is at work or waits for its turn; raise the error of a job then."""
        if not all(job.done() for job in self._jobs):
            return False
        for job in self._jobs:
            job.result()
        return True

    def stop(self) -> None:
        """Cancel the jobs."""
        for job in self._jobs:
            job.cancel(check=False)


class Ray:
    """Tasks on a cluster; Ray starts the task of a node that is lost on another one.

    Args:
        runner: What each task calls.
        number: Number of tasks.
        folder: Folder of the results.
        options: ``address`` of the cluster, which this machine becomes without one, and options of a remote function,
            such as ``num_cpus`` and ``num_gpus``, which may be a share.
    """

    def __init__(self, runner: Callable[[], object], number: int, folder: Path, options: Mapping[str, Any]) -> None:
        import ray

        settings = {"address": None, "max_retries": -1, **options}
        self._ray, self._joined = ray, not ray.is_initialized()
        address = settings.pop("address")
        if self._joined:
            ray.init(address=address, log_to_driver=False)
        task = ray.remote(_call).options(**settings)
        self._tasks = [task.remote(runner) for _ in range(number)]

    def all_ended(self) -> bool:
        """Return whether no task is at work or waits for its turn; raise the error of a task then."""
        _, left = self._ray.wait(self._tasks, num_returns=len(self._tasks), timeout=0)
        if not left:
            self._ray.get(self._tasks)
        return not left

    def stop(self) -> None:
        """Cancel the tasks, and leave the cluster."""
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        if self._joined:
            self._ray.shutdown()


def _call(runner: Callable[[], object]) -> None:
    runner()


Engine = Slurm | Ray


def start_engine(
    name: str, runner: Callable[[], object], number: int, folder: Path, options: Mapping[str, Any]
) -> Engine:
    """Start a number of runners by an engine.

    Raises:
        RuntimeError: If its package is not installed.
    """
    make = Slurm if name == "slurm" else Ray
    try:
        return make(runner, number, folder, options)
    except ImportError as error:
        raise RuntimeError(f"`engine` {name!r} needs a package: pip install 'fl-lightning[{name}]'") from error
