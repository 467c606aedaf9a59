"""Where the chat starter's training starts: weights that copy already."""

import torch

from starters.chat.architecture import make_model
from starters.chat.tokens import make_tokenizer


def test_an_untrained_network_goes_on_as_it_went_on_before() -> None:
    model = make_model(make_tokenizer(())).eval()
    words = torch.randperm(256, generator=torch.Generator().manual_seed(1))[:100]
    ids = torch.cat([words, words])[None]
    with torch.inference_mode():
        predicted = model(input_ids=ids).logits[0].argmax(-1)
    right = predicted[100:-1] == ids[0, 101:]
    assert right.float().mean() > 0.9
