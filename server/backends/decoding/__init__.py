"""Untrusted image files to pixels, in processes that may die.

- `pool`: the server's end: starts decoders, gives them files, kills those that take too long or that nobody waits for
- `turns`: who decodes next, so that no key and no large image keeps the others waiting
- `worker`: the decoder process and its limits
- `pixels`: the decoding itself, with Pillow
- `bounds`: the counts in a file before it is decoded
- `messages`: the messages between server and decoder
- `data_uri`: the bytes of a data URI

Only `worker`, `pixels` and `bounds` see the content of a file, and only the decoder process imports them.
"""
