"""For all tests."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes of tests share two cores, and so do their servers

settings.register_profile("darkroom", deadline=None)  # a busy machine is no failure
settings.load_profile("darkroom")
