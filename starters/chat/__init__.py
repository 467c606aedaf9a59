"""starter-chat: a causal language model of 0.8 M parameters that knows this server and calls tools.

`architecture` is the network, `tokens` its tokenizer and `template.jinja` how a conversation becomes text; `talk` makes
the conversations it learns from, `train` teaches it, `measure` says how well it learned.
"""
