"""The least time that chips need for counted work: each operation takes as long as its arithmetic or its bytes do,
whichever is longer, and the host launches meanwhile."""

from dataclasses import dataclass
from typing import Final

from benchmarks.launches.tally import Kind, Work

LAUNCH_S: Final = 5e-6  # of a kernel, on a quick host
# The parts of what a data sheet says that an H100 reaches in bfloat16: 650 and 550 TFLOP/s, and 3 TB/s
OF_ARITHMETIC: Final[dict[Kind, float]] = {"product": 0.66, "attention": 0.56, "small": 1.0}
OF_BANDWIDTH: Final = 0.9


@dataclass(frozen=True)
class Chip:
    """A GPU by its data sheet: dense products in bfloat16, summed in float32, and the bandwidth of its memory."""

    name: str
    tflops: float
    tbytes_s: float

    def device_s(self, work: Work) -> float:
        """Return the seconds that the GPU computes."""
        return sum(
            count * max(each.flop / (self.tflops * 1e12 * OF_ARITHMETIC[each.kind]), each.bytes / self._bytes_s)
            for each, count in work.operations.items()
        )

    def seconds(self, work: Work) -> float:
        """Return the seconds that work takes, by the GPU or by the host that launches."""
        return max(self.device_s(work), work.host_launches * LAUNCH_S)

    @property
    def _bytes_s(self) -> float:
        return self.tbytes_s * 1e12 * OF_BANDWIDTH


CHIPS: Final = (
    Chip("RTX 4090", 165, 1.01),
    Chip("RTX 5090", 210, 1.79),
    Chip("A100 80 GB", 312, 2.04),
    Chip("H100", 989, 3.35),
    Chip("H200", 989, 4.8),
    Chip("B200", 2250, 8.0),
)
