"""What differs between the families of pipelines.

- tasks: which classes draw on a checkpoint's weights
- call_arguments: arguments that differ between the families
- size_multiple: what the sides of an image must be multiples of
- cast_codec: codecs that pipelines cast to float32 and back
"""
