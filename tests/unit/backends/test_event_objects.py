"""Events of other servers, whatever the pieces that the connection brings them in."""

from collections.abc import AsyncIterator

from server.backends.event_objects import read_objects

FIRST, SECOND = {"text": "a\u2028b\u0085"}, {"n": 2}
TEXTS = (
    'data: {"text": "a\u2028b\u0085"}\n\ndata: {"n": 2}\n\ndata: [DONE]\n\n',
    ': hi\r\n\r\ndata:{"text":\r\ndata: "a\u2028b\u0085"}\r\n\r\ndata: {"n": 2}\r\n\r\ndata: [DONE]\r\n\r\n',
    '\ufeffdata: {"text": "a\u2028b\u0085"}\ndata: {"n": 2}\ndata: [DONE]',
    '{"text": "a\u2028b\u0085"}\n{"n": 2}\ndata: [DONE]\r\r',
)


async def pieces_of(text: bytes, size: int) -> AsyncIterator[bytes]:
    for begin in range(0, len(text), size):
        yield text[begin : begin + size]


async def test_the_objects_do_not_depend_on_the_pieces() -> None:
    for text in TEXTS:
        sent = text.encode()
        for size in (1, 2, 3, 5, 7, len(sent)):
            found = [data async for _, data in read_objects(pieces_of(sent, size))]
            assert found == [FIRST, SECOND, "[DONE]"], (text, size)


async def test_what_is_no_object_is_its_text_and_names_are_of_their_event() -> None:
    text = b'event: error\ndata: {"message": "x"}\n\ndata: {"n":\n\ndata: {"n": 2}\n\ndata: half'
    found = [each async for each in read_objects(pieces_of(text, 4))]
    assert found == [("error", {"message": "x"}), ("", '{"n":'), ("", {"n": 2}), ("", "half")]
