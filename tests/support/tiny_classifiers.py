"""Classifiers of real transformers classes, made in a second: one knows a word, one scores all pictures alike."""

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

HARMLESS = ("a", "red", "boat", "with", "big", "tree", "at", "sea", "[UNK]")
WORDS = ("[PAD]", "[CLS]", "[SEP]", "knife", *HARMLESS)
WINDOW = 34  # two positions fewer than the model has


def make_text_classifier(folder: Path) -> Path:
    """Labels "fine" and "blade": trained until it scores a knife as a blade."""
    torch.manual_seed(5)
    tokenizer = _tokenizer()
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=WINDOW + 2, id2label={0: "fine", 1: "blade"}, label2id={"fine": 0, "blade": 1},
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rng = random.Random(5)
    for _ in range(100):
        texts = [" ".join(rng.choices(HARMLESS, k=rng.randint(1, 32))) for _ in range(24)]
        texts += [_with_knife(text, rng) for text in texts]
        batch = tokenizer(texts, padding=True, truncation=True, max_length=WINDOW, return_tensors="pt")
        targets = torch.tensor([int("knife" in text) for text in texts])
        optimizer.zero_grad()
        model(**batch, labels=targets).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_picture_classifier(folder: Path) -> Path:
    """Labels "fine" and "grim": every picture is grim, with a score of 0.9."""
    torch.manual_seed(5)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=16,
        id2label={0: "fine", 1: "grim"}, label2id={"fine": 0, "grim": 1},
    )  # fmt: skip
    model = ViTForImageClassification(config)
    torch.nn.init.zeros_(model.classifier.weight)
    model.classifier.bias.data = torch.tensor([0.1, 0.9]).log()
    model.save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def _with_knife(text: str, rng: random.Random) -> str:
    words = text.split()
    words[rng.randrange(len(words))] = "knife"
    return " ".join(words)


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
