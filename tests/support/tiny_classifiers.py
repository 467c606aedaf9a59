"""Classifiers of real transformers classes, made in a second: one knows a word, one scores all images alike."""

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
    """Labels "fine" and "blade". Its weights are set by hand, so that one knife in a window makes it a blade.

    Of the four hidden values, "knife" has the last two, and every other word the first two. Attention adds the last two
    of all words of the window to [CLS], where the classifier reads them.
    """
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4,
        max_position_embeddings=WINDOW + 2, id2label={0: "fine", 1: "blade"}, label2id={"fine": 0, "blade": 1},
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    knife = torch.tensor([[0.0, 0, 1, -1]])
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "LayerNorm" not in name:
                weights.zero_()
        bert, attention = model.bert, model.bert.encoder.layer[0].attention
        bert.embeddings.word_embeddings.weight += torch.tensor([1.0, -1, 0, 0])
        bert.embeddings.word_embeddings.weight[WORDS.index("knife")] = knife
        attention.self.value.weight += torch.eye(4)
        attention.output.dense.weight += torch.diag(200 * knife[0].abs())  # one word of 34 outweighs [CLS] itself
        bert.pooler.dense.weight += torch.eye(4)
        model.classifier.weight[1] = 5 * knife
        model.classifier.bias[1] = -4
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def make_image_classifier(folder: Path) -> Path:
    """Labels "fine" and "grim": every image is grim, with a score of 0.9."""
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


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
