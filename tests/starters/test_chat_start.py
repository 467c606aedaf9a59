"""Where the chat starter's training starts: weights that copy already, and an optimizer with orthogonal steps."""

import pytest
import torch
from torch.nn import Parameter

from pipelines.starter.chat.architecture import make_model
from pipelines.starter.chat.muon import Muon, orthogonal
from pipelines.starter.chat.tokens import make_tokenizer


def test_an_untrained_network_goes_on_as_it_went_on_before() -> None:
    model = make_model(make_tokenizer(())).eval()
    words = torch.randperm(256, generator=torch.Generator().manual_seed(1))[:100]
    ids = torch.cat([words, words])[None]
    with torch.inference_mode():
        predicted = model(input_ids=ids).logits[0].argmax(-1)
    right = predicted[100:-1] == ids[0, 101:]
    assert right.float().mean() > 0.9


@pytest.mark.parametrize("shape", [(3, 24, 24), (2, 12, 40), (2, 40, 12)])
def test_orthogonal_matrices_have_singular_values_of_about_one(shape: tuple[int, int, int]) -> None:
    matrices = orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(2)))
    assert matrices.shape == shape
    values = torch.linalg.svdvals(matrices)
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_muon_finds_a_matrix() -> None:
    generator = torch.Generator().manual_seed(3)
    wanted = torch.linalg.qr(torch.randn(8, 8, generator=generator))[0]
    matrix = Parameter(torch.zeros(8, 8))
    optimizer = Muon([matrix], lr=0.1, weight_decay=0.0)
    for step in range(60):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 60)
        optimizer.zero_grad()
        (matrix - wanted).square().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert (matrix - wanted).norm() < 0.1 * wanted.norm()
