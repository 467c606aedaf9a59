"""Events of a chat's answer, beside those of `pipelines.protocol.chat`."""

from dataclasses import dataclass

from pipelines.protocol.chat import Admitted, ChatEvent
from server.backends.upstream import UpstreamResponse
from server.state.active_chats import Sent


@dataclass(frozen=True, slots=True)
class CallAdmitted(Admitted):
    """The `Admitted` of a task of the server. `job` is an image call's or a response's id; `replayed`: it is an earlier
    one, asked for again."""

    job: str = ""
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class ImageDelta:
    """A whole image of a choice, as base64. `link`: the URL by which the choice's text names it, if it does.
    `truncated`: the part of its prompt that was not read."""

    choice: int
    data: str
    media_type: str
    index: int = 0  # among the images of its choice
    link: str | None = None
    truncated: str = ""

    @property
    def data_uri(self) -> str:
        """Return the image as a data URI."""
        return f"data:{self.media_type};base64,{self.data}"

    @property
    def text(self) -> str:
        """Return the link to the image, in Markdown."""
        return f"[image]({self.link})\n" if self.link else ""


@dataclass(frozen=True, slots=True)
class RawItem:
    """A chunk of a stream, or a whole completion, that is sent as it is: an upstream's, or a recorded one."""

    body: Sent


# An UpstreamResponse is the only event of its chat, whatever its status
AnswerEvent = ChatEvent | ImageDelta | RawItem | UpstreamResponse
