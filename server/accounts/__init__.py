"""Keys and money. SQLAlchemy rows never leave this package, and nothing here knows HTTP."""
