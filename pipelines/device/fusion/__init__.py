"""Small operations of a pass as fewer kernels, with the same bits.

- recording: what a pass does to tensors, written down
- simplifying: what of it need not be computed
- expressions, source, planning: which of its operations become one kernel, and what is written in it
- kernels, program: compiling the kernels, and repeating the pass with them
- fuser: all of it, while passes go on
"""
