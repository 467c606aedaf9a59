"""starter-chat: a causal language model of 0.8 M parameters that knows this server and calls tools.

architecture              the network
tokens, template.jinja    the tokenizer, and how a conversation becomes text
"""
