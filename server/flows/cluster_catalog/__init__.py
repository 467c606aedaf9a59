"""The catalog of several gateways: one for all of them, in the database.

A change has two phases. Every live gateway prepares the new version (`member.py`); if all have, it is recorded, and
from then on it is what every gateway serves (`update.py`). A gateway that was gone, or was started later, takes the
current version (`start.py`).
"""
