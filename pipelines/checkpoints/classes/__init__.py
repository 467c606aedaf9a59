"""The classes that an index names, by the source of the installed libraries."""
