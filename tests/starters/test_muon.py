"""Muon: what it makes of matrices and convolutions."""

import pytest
import torch
from torch.nn import Parameter

from starters.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(3, 24, 24), (2, 12, 40), (2, 40, 12)])
def test_orthogonal_matrices_have_singular_values_of_about_one(shape: tuple[int, int, int]) -> None:
    matrices = orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(2)))
    assert matrices.shape == shape
    values = torch.linalg.svdvals(matrices)
    assert values.min() > 0.3
    assert values.max() < 1.3


@pytest.mark.parametrize("shape", [(8, 8), (8, 2, 2, 2)])
def test_muon_finds_a_matrix(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    wanted = torch.linalg.qr(torch.randn(8, 8, generator=generator))[0].view(shape)
    matrix = Parameter(torch.zeros(shape))
    optimizer = Muon([matrix], lr=0.1, weight_decay=0.0)
    for step in range(60):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 60)
        optimizer.zero_grad()
        (matrix - wanted).square().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert (matrix - wanted).norm() < 0.1 * wanted.norm()
