"""What an answer must obey: schemas as grammars, and the tokens that may come next."""
