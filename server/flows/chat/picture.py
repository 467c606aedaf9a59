"""Events of a chat that draws, beside those of `pipelines.protocol.chat`."""

from dataclasses import dataclass

from pipelines.protocol.chat import Admitted, ChatEvent


@dataclass(frozen=True, slots=True)
class CallAdmitted(Admitted):
    """The `Admitted` of an image call. `job` is its id; `replayed`: it is an earlier call, asked for again."""

    job: str = ""
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class PictureDelta:
    """A whole picture of a choice, as base64. `link`: the URL by which the choice's text names it, if it does.
    `truncated`: what of its prompt was not read."""

    choice: int
    data: str
    media_type: str
    index: int = 0  # among the pictures of its choice
    link: str | None = None
    truncated: str = ""

    @property
    def data_uri(self) -> str:
        return f"data:{self.media_type};base64,{self.data}"

    @property
    def text(self) -> str:
        """In Markdown."""
        return f"[image]({self.link})\n" if self.link else ""


PicturedEvent = ChatEvent | PictureDelta
