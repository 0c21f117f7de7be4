"""Disks that are full."""

from __future__ import annotations

import ctypes
import os
import resource
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NEW_USER_AND_MOUNTS = 0x10000000 | 0x00020000


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Let no file grow beyond ``size`` bytes in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def in_small_file_system(folder: Path, kibibytes: int, function: Callable[[], str]) -> str:
    """Return what a function returns in a child process where ``folder`` is a file system of that size.

    The test is skipped where a process may not have mounts of its own. A child that a signal kills is a failure.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.write(writing, _mounted(folder, kibibytes, function).encode())
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"the process ended with {status}"
    if text == "no mount":
        pytest.skip("mounts are not allowed here")
    return text


def _mounted(folder: Path, kibibytes: int, function: Callable[[], str]) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"size={kibibytes}k".encode()
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_USER_AND_MOUNTS):
        return "no mount"
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    if libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, options):
        return "no mount"
    return function()
