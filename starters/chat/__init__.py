"""starter-chat: a causal language model of 0.8 M parameters that knows this server and calls tools.

architecture, induction_heads   the network, and weights to start from that copy already
tokens, template.jinja          the tokenizer, and how a conversation becomes text
conversations                   a grammar that writes the training data
train, measure                  training, and how well the result does on held-out conversations
"""
