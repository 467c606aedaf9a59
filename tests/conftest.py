"""For all tests."""

from hypothesis import settings

settings.register_profile("darkroom", deadline=None)  # a busy machine is no failure
settings.load_profile("darkroom")
