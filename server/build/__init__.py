"""Builds the parts of a server from its settings, from the database upwards. Nothing is started here.

- `parts`: the five records of the parts that flows are built on
- `images`, `chats`, `operations`: the flows on them
- `services`: all of it, in order
"""
