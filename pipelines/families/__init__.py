"""The differences between the families of diffusers' image pipelines: one file a family, with those that are made
of it, and the guesses for all others.

- generic: `Family`, whose attributes and methods are the hooks, each with the guess that holds unless a family says
  otherwise
- registry: which family a pipeline class is of
- task: the inputs that a pipeline draws from
- refused: classes that calls can't draw with
- every other module: one family, subclasses of `Family`

Nothing outside names a family. Nothing here imports torch or diffusers, so that the catalog, the server's `inspect` and
the image engine go by the same words.
"""
