"""The service tiers of calls: which goes first where several wait. Pure."""

from collections.abc import Mapping
from typing import Final, Literal

ServiceTier = Literal["priority", "default", "flex"]
RANK: Final[Mapping[ServiceTier, int]] = {"priority": 0, "default": 1, "flex": 2}  # the least goes first
