"""A decoder that takes every estimate of memory for small, for tests of the kernel's limit."""

from server.backends.decoding import pixels, worker

if __name__ == "__main__":
    pixels._check_memory = lambda needed_bytes, max_bytes: None
    worker.main()
