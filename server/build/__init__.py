"""Builds the parts of a server from its settings, from the database upwards. Nothing is started here.

- `parts`: the five records of the parts that flows are built on
- `services`: the flows on them, in order
"""
