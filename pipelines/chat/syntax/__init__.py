"""What a model's output means: how each family writes its thoughts and its tool calls.

`families` is the table of them, `output_syntax` chooses from it for a checkpoint. Each `CallFormat` says both how calls
are read and which grammar they follow, so that what is asked for and what is understood can't differ.
"""
