"""Tokens of chats are counted by key and model, and by day underneath."""

from sqlalchemy import text

from server.accounts.chat_usage import ChatTokens, add_chat, chat_tokens
from server.accounts.db import Database
from server.accounts.keys import create_key


def test_chats_add_up_by_key_and_model(database: Database) -> None:
    one = create_key(database, "one", frozenset({"chat"}))[0].id
    two = create_key(database, "two", frozenset({"chat"}))[0].id
    add_chat(database, one, "small", 10, 5)
    add_chat(database, one, "small", 1, 2)
    add_chat(database, one, "large", 7, 0)
    add_chat(database, two, "small", 3, 3)
    assert chat_tokens(database, one) == [ChatTokens(one, "large", 1, 7, 0), ChatTokens(one, "small", 2, 11, 7)]
    assert len(chat_tokens(database)) == 3


def test_days_add_up_too(database: Database) -> None:
    key = create_key(database, "one", frozenset({"chat"}))[0].id
    add_chat(database, key, "small", 10, 5)
    with database.write() as session:
        session.execute(text("UPDATE chat_usage SET day = '2020-01-01'"))
    add_chat(database, key, "small", 1, 1)
    assert chat_tokens(database) == [ChatTokens(key, "small", 2, 11, 6)]
