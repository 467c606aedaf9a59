"""A worker that ends at its start, or comes up with a problem: `python -m tests.support.ending_worker`, in place of
pipelines.worker. ENDING says how."""

import argparse
import os
import threading
from collections.abc import Callable

from benchmarks.echo_worker import EchoEngine
from pipelines import worker
from pipelines.protocol.engine import NoDevice
from pipelines.protocol.messages import LOST_DEVICE_EXIT, FromWorker, Ready, WorkerMemory
from pipelines.protocol.processes import end_process

NO_GPU = "no GPU can be used: it is in EXCLUSIVE_PROCESS mode."
LIBRARY = "libcublas.so.13: cannot open shared object file: No such file or directory"
LOST = "The device no longer answers, so this worker ends: CUDA error: uncorrectable ECC error encountered"
PROBLEMS = ("/dev/shm has 64 MiB.", "The memory limit is 1.0 GiB.")


def start(_: argparse.Namespace, __: Callable[[FromWorker], None]) -> worker.Hosted:
    """Do as ENDING says."""
    match os.environ["ENDING"]:
        case "no device":
            raise NoDevice(NO_GPU)
        case "library":
            raise ImportError(LIBRARY)
        case "lost":
            ending = threading.Thread(target=end_process, args=(LOST_DEVICE_EXIT, LOST))
            ending.start()
            ending.join()
        case "silent":
            os._exit(3)
    return worker.Hosted(EchoEngine(), Ready("a device", is_gpu=False, problems=PROBLEMS), lambda: WorkerMemory(1))


if __name__ == "__main__":
    worker.main(start)
