"""Chat tokens are counted by key and model, stored by day."""

from sqlalchemy import text

from server.accounts.db import Database
from server.accounts.keys import create_key
from server.accounts.usage import ChatUsage, add_chat_usage, list_chat_usage


def test_chats_add_up_by_key_and_model(database: Database) -> None:
    one = create_key(database, "one", frozenset({"chat"}))[0].id
    two = create_key(database, "two", frozenset({"chat"}))[0].id
    add_chat_usage(database, one, "small", 10, 5)
    add_chat_usage(database, one, "small", 1, 2)
    add_chat_usage(database, one, "large", 7, 0)
    add_chat_usage(database, two, "small", 3, 3)
    assert list_chat_usage(database, one) == [ChatUsage(one, "large", 1, 7, 0), ChatUsage(one, "small", 2, 11, 7)]
    assert len(list_chat_usage(database)) == 3


def test_days_add_up_too(database: Database) -> None:
    key = create_key(database, "one", frozenset({"chat"}))[0].id
    add_chat_usage(database, key, "small", 10, 5)
    with database.write() as session:
        session.execute(text("UPDATE chat_usage SET day = '2020-01-01'"))
    add_chat_usage(database, key, "small", 1, 1)
    assert list_chat_usage(database) == [ChatUsage(key, "small", 2, 11, 6)]
