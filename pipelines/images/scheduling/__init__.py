"""Which job has the device next, and which may start. It knows no tensor and no diffusers, and could be a library.

- batching: jobs and their samples, and the order in which those that wait start
- admission: whether a waiting sample may start now
- scheduler: which run has the device for the next forward pass
- fairness: who goes first: the least work left within a key, and keys in turn
- row_limits: how many samples may share a forward pass, learned from measured speed
"""
