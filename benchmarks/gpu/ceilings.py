"""What no server can exceed: matrix products, attention, copies, and a denoiser's step by rows and size."""

import functools

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.networks import Network, networks
from benchmarks.gpu.report import Report


async def ceilings(machine: Machine, report: Report) -> None:
    """Of the device alone."""
    gpu = torch.cuda.get_device_name(machine.device) if machine.is_gpu else "none"
    report.add("GPU", gpu, torch=torch.__version__, cudnn=str(torch.backends.cudnn.version()))
    side = 256 if machine.tiny else 8192
    one, other = (torch.randn(side, side, device=machine.device, dtype=machine.dtype) for _ in range(2))
    flop = 2 * side**3
    report.add("matrix product", flop / machine.timed(lambda: one @ other, 20) / 1e12, "TFLOP/s")
    if machine.has_fp8:
        scale = torch.ones(side, 1, device=machine.device)
        narrow, turned = one.to(torch.float8_e4m3fn), other.to(torch.float8_e4m3fn).t()

        for fast in (False, True):  # sums in fewer bits than float32

            def multiply(fast: bool = fast) -> None:
                torch._scaled_mm(
                    narrow, turned, scale, scale.reshape(1, side), out_dtype=torch.bfloat16, use_fast_accum=fast
                )

            speed = flop / machine.timed(multiply, 20) / 1e12
            report.add("matrix product in float8, by rows", speed, "TFLOP/s", fast_accumulation=fast)
    _attention(machine, report)
    size = 2**20 if machine.tiny else 2**30
    for pinned in (False, True) if machine.is_gpu else (False,):
        # written: pages that never were are all the system's one page of zeros, which stays in the processor's cache
        source = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).fill_(1)
        target = torch.empty(size, dtype=torch.uint8, device=machine.device)
        taken = machine.timed(lambda here=source, there=target: there.copy_(here, non_blocking=True))  # type: ignore[misc]
        report.add("copy to the device", size / taken / 1e9, "GB/s", pinned=pinned)


def _attention(machine: Machine, report: Report) -> None:
    heads, length = (2, 64) if machine.tiny else (24, 4608)  # of FLUX.1 at 1024 x 1024
    query = torch.randn(1, heads, length, 128, device=machine.device, dtype=machine.dtype)

    def attend() -> None:
        torch.nn.functional.scaled_dot_product_attention(query, query, query)

    report.add("attention, as torch chooses", 1e3 * machine.timed(attend, 20), "ms")
    for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION"):
        try:
            with sdpa_kernel(getattr(SDPBackend, name)):
                report.add(f"attention, {name}", 1e3 * machine.timed(attend, 20), "ms")
        except RuntimeError as error:
            report.add(f"attention, {name}", "none", why=str(error).splitlines()[0][:80])


async def steps(machine: Machine, report: Report) -> None:
    """What sharing a forward pass gives, and how much of the device a step uses."""
    for network in networks(machine):
        _steps_of(machine, report, network)
        machine.free()


def _steps_of(machine: Machine, report: Report, network: Network) -> None:
    denoiser = machine.make(network.build)
    for side in (64,) if machine.tiny else (512, 1024):
        alone = 0.0
        for rows in (1, 2) if machine.tiny else (1, 2, 4, 8):
            forward = functools.partial(denoiser, **network.inputs(rows, side), return_dict=False)
            with torch.inference_mode():
                taken = machine.timed(forward, 5)
            alone = alone or taken
            gain = rows * alone / taken
            report.add(f"step of {network.name}", 1e3 * taken, "ms", side=side, rows=rows, gain=gain)
