"""What a sequence may say next."""


class Constraint:
    """Placeholder until grammars arrive."""
