"""Another checkpoint, or another catalog, in a running server: loaded and warmed before it is served.

- `update`: what an operator changes, and the way of a server that is the only one, whose catalog is its files
- `edit`: a swap written into a catalog file, and taken back
- `switch`: loading what a catalog names, and serving it
- `start`: the catalog with which a server starts
- `files`, `member`, `cluster`: the way of several servers, whose catalog is in the database

Of several servers each prepares the new version (`member`). If all have, it is recorded, and from then on it is what
every one of them serves (`cluster`). A server that was gone, or was started later, takes the current version (`start`).
"""
