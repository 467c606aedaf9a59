"""Memory of a chat worker on a CPU for prompts of many lengths, each of which has kernels of its own. Each case has a
process of its own, which reads its settings when it starts."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from pipelines.chat.loading.packed_linear import OPERATIONS, X86
from pipelines.worker import KERNEL_CACHES

PROGRAM = """
import ctypes, sys
from pipelines.worker import bound_kernel_caches

if "bound" in sys.argv:
    bound_kernel_caches()
import torch

class Counts(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

def used_mib():
    LIBC.mallinfo2.restype = Counts
    return LIBC.mallinfo2().uordblks / 2**20

LIBC = ctypes.CDLL(None)
if not hasattr(LIBC, "mallinfo2"):
    print("unknown")
    sys.exit()
torch.set_num_threads(1)
with torch.inference_mode():
    pack, multiply = torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise
    layers = [pack(torch.zeros(width, 64), 8) for width in (32, 64, 96, 128)]
    for rows in range(1, 121):
        for layer in layers:
            multiply(torch.zeros(rows, 64), layer, None, "none", [], "")
        if rows == 40:
            before = used_mib()
print(used_mib() - before)
"""


def growth_mib(*arguments: str) -> float:
    """What 80 further lengths of a prompt take, in MiB."""
    environment = {name: value for name, value in os.environ.items() if name not in KERNEL_CACHES}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    if done.stdout.strip() == "unknown":
        pytest.skip("this C library does not say what is used")
    return float(done.stdout)


@pytest.mark.nightly
def test_prompts_of_many_lengths_take_no_more_memory_than_of_few() -> None:
    if platform.machine() not in X86 or not all(hasattr(torch.ops.mkldnn, name) for name in OPERATIONS):
        pytest.skip("linear layers are not packed on this processor")
    assert growth_mib("bound") < 10
    assert growth_mib() > 40, "else there is nothing to bound"
