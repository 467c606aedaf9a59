"""The messages between the server and the worker processes: frozen values that pickle, and no logic.

- images: CheckpointSpec, Sampling, ImageJob, and the events of a job
- raw_image_file: an image whose pixels wait in a file
- finished_image: a drawn image to its size and into a file, for workers and decoders
- provenance: the mark of a file that a model made it
- upstream: other servers that answer in place of a worker
- chat: ChatSpec, ChatJob, CountJob, and their events
- classify: ClassifierSpec, ClassifyJob, and its events
- messages: the messages of the processes, and their framing
- engine: the Engine protocol: submit, cancel, prepare, unload_except, sleep
- python_command: the command of a child process in Python; processes: what each does first
- pixels: images for Pillow, for workers and decoders
- image_tool: the image tool as it is offered to a chat model
"""
