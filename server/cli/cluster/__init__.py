"""`darkroom cluster`: engines on several machines, by Ray.

- `commands`: the commands and their options; `status_tables`: the output of `status`
- `config`: cluster.toml; `node_properties`: those of one machine, and how it differs from another
- `ray_node`: starts and stops Ray on this machine; `token`: the secret of a cluster, and the secrets that are derived
  from it
- `layout`: which engines there should be. Pure
- `supervisor`, `gateway`: the actors that keep them there, and that serve
"""
