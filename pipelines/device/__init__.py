"""The parts that every engine needs for the device: memory budgets and dtypes, CPU threads, and the libraries'
settings.

- memory: budgets for weights, dtypes, freeing memory
- timing: keeps a thread one turn ahead of a GPU, and measures what work costs it
- staged_copy: weights between the host and a GPU, through page-locked buffers, and a tensor's copy on the host, which
  nobody waits for while it is made
- attention, attention_kernels: the kernel that computes attention, found by trying
- graph_capture: CUDA graphs
- fusion: small operations that follow each other as one kernel
- openmp: releasing the threads that OpenMP keeps for a thread that has computed
- failures: how a job of any kind can fail
- offline: no network access and no progress bars from the libraries
"""
