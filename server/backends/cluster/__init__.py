"""Engines that several servers use, as actors of a Ray cluster. Only `darkroom cluster` and a server with
DARKROOM_CLUSTER import Ray.

- `shared_engine`: one worker for several servers: the owner of each job, one queue, and the jobs that are dropped when
  a server leaves. Knows nothing of Ray
- `engine_actor`: it as an actor on the machine that has the GPU
- `transport`: a server's end of that: the Launcher and the Transport of an `EngineHost`
- `roster`: which engines there are, as the cluster's supervisor says
- `membership`: a server's worker pool follows the roster
"""
