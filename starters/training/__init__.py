"""How the image starters are trained. Everything it needs follows from seeds; nothing here runs in the server.

    pictures    scenes and edits by number
    loop        steps, averaged weights, resuming, progress
    averages, cosines   what the autoencoders' latents are
    codecs      their decoders
    texts       the two text encoders, taught to understand before there is anything to draw
    stages      what the generators' trainings share
    unet, transformer   the generators
    recipes     which of them, for how long, in which order
    export      what was learned, as a checkpoint
    taking_up   the other way round

What is under way is kept in a folder outside the repository's history, so that any run can be broken off and taken up.
"""
