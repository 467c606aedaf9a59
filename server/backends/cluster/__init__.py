"""Engines that several servers use, as actors of a Ray cluster. Only `darkroom cluster` and a server with
DARKROOM_CLUSTER import Ray.

- `shared_engine`: one worker for several servers: whose job is whose, one queue, and what is forgotten when one leaves.
  Knows nothing of Ray
- `engine_actor`: it as an actor on the machine that has the GPU
- `wire`: a server's end of that: the Launcher and the Wire of an `EngineHost`
- `roster`: which engines there are, as the cluster's supervisor says
- `membership`: a server's fleet follows the roster
"""
