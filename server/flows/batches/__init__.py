"""Batches: many calls in one request, which the server sends to itself.

`lines` reads them, `batches` creates, shows and cancels batches, `run` sends their calls.
"""
