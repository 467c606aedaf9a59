"""The operator's moderation policy. `server.flows.moderation` applies it to every input and output.

- `policy`: the policy file: rules, classifiers, and their breaches
- `matching`: blocked words and patterns, in one form for all spellings of a text
"""
