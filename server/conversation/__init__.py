"""A conversation, as every protocol tells it: what was said, called and returned, with what stands for the rest.

`blocks` knows the blocks of all protocols, `own_words` brings those of one message into its protocol's own words,
`calls` finds the call of a result, and `turns` has the conversation and writes it as the messages of a chat completion.
"""
