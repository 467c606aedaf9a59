"""The changes and reports of operators, and the reports of a key about itself: the same for HTTP and the command line.

- `keys`: API keys with their limits and money
- `reports`: usage, calls, charges, refusals and the audit, as rows
- `csv_text`: rows as CSV
- `checkpoints`, `comparison_grid`, `grid_jobs`: checkpoints that are looked at, added and compared
- `sign_in`: people who sign in with an account of the house
"""
