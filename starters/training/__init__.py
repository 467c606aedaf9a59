"""The training of the image starters. Everything in it follows from seeds.

    dataset             scenes and edits by number
    loop                steps, averaged weights, resuming, progress
    average_codec, dct_codec   the autoencoders' latents, by encoders that are set, not trained
    decoders, upsampling       their decoders, and how starter-beta's is initialised
    text_encoder        the two text encoders, trained before the generators
    stages              what the generators' trainings share
    unet, transformer, token_probes   the generators, and an auxiliary loss
    recipes             the phases, their length and their order
    export              a training state as a checkpoint
    warm_start          a checkpoint as a training state

The state of a training is in a folder that git ignores, so that a run can be interrupted and resumed.
"""
