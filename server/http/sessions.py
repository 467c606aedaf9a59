"""The cookies of the console's sessions."""

from fastapi import Request, Response

from server.accounts.console_sessions import LIFETIME_S


def set_session_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Give the browser a session's cookie, which no script can read and no other site can send."""
    secure = request.url.scheme == "https"
    response.set_cookie(name, value, max_age=LIFETIME_S, httponly=True, samesite="strict", secure=secure)
