"""What every engine needs of the device: memory budgets and dtypes, CPU threads, and the libraries' settings.

- memory: budgets for weights, the fence that keeps a thread one turn ahead of a GPU, dtypes, freeing memory
- staged_copy: weights between the host and a GPU, through page-locked buffers
- openmp: releasing the threads that OpenMP keeps for a thread that has computed
- failures: how a job of any kind can fail
- offline: no network access and no progress bars from the libraries
"""
