"""Engines that several servers use, as actors of a Ray cluster. Only a server with DARKROOM_CLUSTER, and `darkroom
cluster`, import Ray.

- `engines_file`: cluster.toml, which engines there should be. Pure
- `shared_engine`: one worker for several servers: the owner of each job, one queue, and the jobs that are dropped when
  a server leaves. Knows nothing of Ray
- `node_properties`: what a node must have in common with the servers
- `engine_actor`: it as an actor on the machine that has the GPU
- `transport`: a server's end of that: the Launcher and the Transport of an `EngineHost`
- `ray_cluster`: has Ray make the engines, and lists those that may be used
"""
