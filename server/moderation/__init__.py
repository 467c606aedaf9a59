"""What may be asked and what may be shown: the operator's policy, applied to every route before and after the work."""
