"""The recipe of the demo checkpoints: starter-alpha, starter-beta and starter-chat. README.md has their figures.

    train.py, measure.py   the commands behind `make starters` and `make measure-starters`
    world/                 scenes, captions and edits made by a program, the renderer, and the checker of images
    training/              the training of the two image starters
    measuring/             how well image starters follow prompts
    chat/                  starter-chat: network, tokenizer, conversations, training and measuring
    architectures.py, tokens.py, muon.py, readme_sheet.py   networks, tokenizers, optimizer, the README's images

Frozen: the trained files are in weights/, and no more training is planned. A development package: it is neither in the
wheel nor in the Docker image, and server/ and pipelines/ never import it; tests/ and benchmarks/ may.
"""
