"""The truth about a GPU, without a network and without checkpoints: random weights in real sizes, made on the device.

Each part ends within ten minutes on an H200. `--tiny` runs all of them on a CPU, to see that they run at all.
"""
