"""Worker processes that are forked from a process which has imported everything, in the place of started ones."""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Sequence
from typing import IO, Any

from fl_lightning.experiment import worker_process
from fl_lightning.experiment.worker import main


class Nursery:
    """Forks workers on request, until whoever may request them has ended. Make it before there are threads."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self._socket.close()
            try:
                _serve(theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        theirs.close()

    def fork(self, descriptors: Sequence[int]) -> int:
        """Fork a worker with these descriptors as input, output, error and others; return its process number."""
        self._socket.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
        return int(struct.unpack("i", self._socket.recv(4))[0])

    def replace_popen(self) -> None:
        """Let this process's worker pools take their workers from here."""
        nursery = self

        class Forked(_ForkedWorker):
            def __init__(self, command: Sequence[str], **options: Any) -> None:
                super().__init__(nursery, **options)

        class Subprocess:
            PIPE, TimeoutExpired, Popen = subprocess.PIPE, subprocess.TimeoutExpired, Forked

        worker_process.subprocess = Subprocess  # type: ignore[assignment]


def _serve(requests: socket.socket) -> None:
    while True:
        content, ancillary, _, _ = requests.recvmsg(1, socket.CMSG_LEN(16 * 4))
        if not content:
            return
        descriptors = array.array("i")
        descriptors.frombytes(ancillary[0][2])
        child = os.fork()
        if child == 0:
            requests.close()
            _work(list(descriptors))
        requests.send(struct.pack("i", child))
        for descriptor in descriptors:
            os.close(descriptor)


def _work(descriptors: Sequence[int]) -> None:
    try:
        os.setsid()
        for place, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, place)
            os.close(descriptor)
        sys.stdin = os.fdopen(0, encoding="utf-8")
        main(None)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


class _ForkedWorker:
    """What a pool needs of ``subprocess.Popen``."""

    def __init__(self, nursery: Nursery, stderr: IO[bytes], pass_fds: Sequence[int], **options: Any) -> None:
        their_input, my_output = os.pipe()
        my_input, their_output = os.pipe()
        self.pid = nursery.fork([their_input, their_output, stderr.fileno(), *pass_fds])
        os.close(their_input)
        os.close(their_output)
        self._ended = os.pidfd_open(self.pid)
        self.stdin = os.fdopen(my_output, "w", encoding="utf-8")
        self.stdout = os.fdopen(my_input, encoding="utf-8")

    def kill(self) -> None:
        os.kill(self.pid, 9)

    def wait(self, timeout: float | None = None) -> int:
        if not select.select([self._ended], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return 0  # the nursery's child, whose status is not known here
