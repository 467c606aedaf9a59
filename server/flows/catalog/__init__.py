"""Another checkpoint, or another catalog, in a running server: loaded and warmed before it is served.

- `update`: an operator's changes, from files to other files
- `fit`: what becomes of each key of a catalog file when its checkpoint is another
- `edit`: a swap in the text of a catalog file
- `folder`: the record of a server that is the only one: its files
- `switch`: loading the checkpoints that a catalog names, reading the sums of their weights meanwhile, and serving them
- `start`: the catalog with which a server starts
- `files`, `member`, `cluster`: the record of several servers: the database

Of several servers each prepares the new version (`member`). If all have, it is recorded, and from then on every one of
them serves it (`cluster`). A server that was gone, or was started later, takes the current version (`start`).
"""
