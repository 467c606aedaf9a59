"""Peak memory of published checkpoints at their real sizes, computed by running them on fake tensors."""
