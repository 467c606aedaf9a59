"""The device that the tests of engines compute on: a CPU, and the GPU of tests/simulated_gpu where its plugin runs."""

import os

import pytest
import torch

DEVICE = torch.device("cuda" if "SIMULATED_GPUS" in os.environ else "cpu")
of_a_cpu = pytest.mark.skipif(DEVICE.type != "cpu", reason="it is about what a CPU does")
