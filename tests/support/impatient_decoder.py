"""A decoder with next to no processor time, for tests of its limit."""

from server.backends.decoding import worker

if __name__ == "__main__":
    worker.CPU_LIMIT_S = 0
    worker.main()
