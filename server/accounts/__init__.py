"""API keys, money and stored calls. SQLAlchemy rows never leave this package, and nothing here knows HTTP.

- `db`: the database, SQLite or PostgreSQL; `migrations` makes its tables
- `tables`, `result_tables`, `response_tables`, `operator_tables`: the rows
- `paging`: pages and periods of lists
- `keys`: API keys and their limits
- `copies`: copies of the database while others use it
- `ledger`: holds and charges of calls of any kind
- `results`: the stored images of calls
- `usage`: usage by key, day and model, and the tokens of chats
- `report`: balances, charges and the check of the ledger
- `calls`: the outcome of each image call, and of chats with an Idempotency-Key, for retries
- `webhooks`: those that are to be sent
- `response_items`, `responses`, `conversations`: stored responses, their chains, and conversations
- `call_log`: a row for each request that runs a model
- `operators`, `audit`: admin keys by name, sessions of the console, and changes
- `refusals`: the refusals of moderation
"""
