"""What the image starters get right, by looking at their pictures alone. Nothing here runs in the server.

obedience   captions and edits that training never saw, drawn by anything and judged
painting    drawing with a checkpoint of the catalog, by the engine's own path
report      the figures as a table, the pictures as a sheet
"""
