"""The starter world: flat, poster-like scenes drawn by a program, so that every caption of one is exactly true.

    scene      what a scene is, and random scenes
    render     the image of a scene, at any size
    checker    what an image shows, from its pixels alone

Some end-to-end tests use it.
"""
