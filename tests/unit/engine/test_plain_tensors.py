"""What weights take, where a tensor is made of others."""

import torch
from torch.testing._internal.two_tensor import TwoTensor

from pipelines.device.memory import plain_tensors


def test_a_tensor_that_wraps_others_takes_what_they_take() -> None:
    """Quantized ones are values and their scales, and say of themselves what they are without either."""
    values, scale = torch.zeros(8, 16), torch.ones(8, 16)
    wrapped = TwoTensor(values, TwoTensor(scale, scale.clone()))
    assert wrapped.nbytes == values.nbytes
    assert [each.nbytes for each in plain_tensors(wrapped)] == 3 * [values.nbytes]
    assert [each.nbytes for each in plain_tensors(values)] == [values.nbytes]
