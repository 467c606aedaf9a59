"""The served models: names, prices, groups and aliases, read from the TOML files of `model_configs/`. Pure, without
torch.

- `images`: the image models, with their prices and sizes
- `chat`: the chat models: local checkpoints and upstreams
- `schema`: the pydantic models of the files
- `specs`: the spec of each file's checkpoint, which is all that an engine sees of the catalog
- `sizes`: the output size of a request
- `new_file`: the catalog file of a checkpoint that is added
- `toml`: strict TOML, whose errors name file, line and key
"""
