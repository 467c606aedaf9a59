"""Runs Lemonade's image tests (`server_sd.py`, in the current folder) against the server at OPENAI_BASE_URL: their
address is this server's, and each of their requests has the key. Prints the results as JSON."""

import json
import os
import sys
import unittest
from typing import Any

import requests

sys.path.insert(0, os.getcwd())
BASE, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
send = requests.Session.request


def request(session: requests.Session, method: str, url: str, **options: Any) -> requests.Response:
    path = url.partition("/api/v1")[2]
    headers = {**(options.pop("headers", None) or {}), "Authorization": f"Bearer {KEY}"}
    return send(session, method, BASE + path if path else url, headers=headers, **options)


requests.Session.request = request  # type: ignore[method-assign,assignment]
result = unittest.TextTestRunner(stream=sys.stderr, verbosity=2).run(
    unittest.defaultTestLoader.loadTestsFromName("server_sd")
)
failed = [test.id().rpartition(".")[2] for test, _ in (*result.failures, *result.errors)]
print(json.dumps({"run": result.testsRun, "failed": failed}))
