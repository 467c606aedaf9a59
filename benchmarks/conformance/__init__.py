"""`make conformance`: clients of others against one server, and the tables of docs/reference/conformance.md."""
