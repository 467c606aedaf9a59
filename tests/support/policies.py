"""A policy of moderation: one rule of words, and a classifier by which every image of the beta group is refused."""

from pathlib import Path

POLICY = """
[[rules]]
name     = "no-weapons"
category = "violence"
terms    = ["assault rifle"]

[[classifiers]]
reads      = "pictures"
checkpoint = "{grim}"
groups     = ["beta-image-per-call"]
stages     = ["{stage}"]
[classifiers.labels.grim]
policy    = "nothing-grim"
category  = "mood"
threshold = 0.5
"""


def write_policy(folder: Path, stage: str) -> Path:
    """Images are refused at this stage, "input" or "output", by the classifier in the folder's `grim`."""
    file = folder / "policy.toml"
    file.write_text(POLICY.format(grim=folder / "grim", stage=stage))
    return file
