"""Training conversations from a grammar: no files, no two alike, and some wordings held out for measuring.

words           fillers: words, names, numbers, invented words
script          a conversation as it is written, and which wordings a split may use
image_requests  asking for images and changes, with an image tool and without
functions       functions that users declare, each with its wordings
tool_calls      calls of those, and of functions with invented names
small_talk      greetings, the server, sums, repeating, and what it does not know; topics has the texts
sample          whole conversations: a system message, tools, some turns
"""
