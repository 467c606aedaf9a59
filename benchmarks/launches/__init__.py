"""What a denoising step launches and moves at the real sizes of published checkpoints, and what follows for chips."""
