"""How well the image starters follow prompts, judged by pixels alone.

adherence   held-out captions and edits, drawn by any generator and judged
generate    a generator from a checkpoint of the catalog, through the engine's own pipeline
report      the figures as a table and in the model cards, the images as a contact sheet
"""
