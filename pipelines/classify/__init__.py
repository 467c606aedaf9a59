"""Moderation classifiers: texts and images in, a score for every label out.

- engine: `ClassifyEngine.submit` queues a job on its one thread, where `load_classifier` loads the checkpoint once and
  `Classifier` scores texts (in windows) and images; the job's events go back to the event loop, and to the worker
"""
