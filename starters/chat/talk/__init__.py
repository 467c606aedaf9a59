"""Conversations to learn from, made by a grammar: no files, no two alike, and some wordings kept for measuring.

words      what fills the gaps: words, names, numbers, made-up words
script     a conversation as it is written down, and which wordings training may see
pictures   asking for pictures and changes, with an image tool and without
functions  functions with wordings of their own; calling: those, and functions with made-up names
chatter    greetings, the server, the scene world, sums, saying things back, and what it doesn't know
mix        whole conversations: a system message, tools, some turns
"""
