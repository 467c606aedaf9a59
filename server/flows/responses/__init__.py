"""One response, read in order: `opening` looks up what it needs, `converse` runs it, `drawing` is its image tool,
`scribe` tells what happens, `live` lets clients listen, and `stored` answers for responses of the past."""
