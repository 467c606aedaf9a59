"""Tensors and checkpoints: everything that happens inside a worker process.

What `server` imports knows no torch: `types`, `chat_types`, `classify_types` and `messages` (the contract), `catalog`,
`chat_catalog` and `strict_toml`, `sizes`, `estimate`, `pixels`, `checkpoint_files`, `starter.chat.image_tool`.
"""
