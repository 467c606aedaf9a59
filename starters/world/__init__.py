"""The starter world: flat, poster-like scenes drawn by a program, so that every caption of one is exactly true.

    scene      what a scene is, and random scenes
    captions   many true wordings of a scene; edits: instructions that lead from one scene to another
    render     the image of a scene, at any size
    checker    what an image shows, from its pixels alone

Training, measuring and some end-to-end tests use it.
"""
