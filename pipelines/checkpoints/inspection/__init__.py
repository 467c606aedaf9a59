"""What is found in a checkpoint before it is loaded, and the values that fit it."""
