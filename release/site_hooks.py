"""mkdocs hooks for docs/: adds the repository's own pages, mends their links, and moves inline scripts into files.

The server's Content-Security-Policy forbids inline scripts and styles, which the theme writes into every page.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "weights.md": "weights.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "starters/README.md": "starters.md",
}  # repository -> site
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!\w+:)(?P<path>[^)#\s]+)(?P<anchor>[^)]*)\)")
INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)

_inlined: dict[str, str] = {}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside docs/."""
    for source, target in PAGES.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links to files of the repository links within the site, or plain text if the site has no such page."""
    source = {target: path for path, target in PAGES.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def mend(link: re.Match[str]) -> str:
        path = os.path.normpath(Path(source).parent / link["path"])
        target = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if path == "README.md":
            target = "index.md"
        if target is None:
            return link["text"]
        relative = os.path.relpath(target, Path(page.file.src_uri).parent)
        return f"{link['image']}[{link['text']}]({relative}{link['anchor']})"

    return LINK.sub(mend, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Move each inline script and style of a page into a file."""
    return INLINE.sub(lambda inline: _external(inline, page.url), output)


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """Do the same for pages without a source, such as 404.html."""
    return INLINE.sub(lambda inline: _external(inline, "/docs/"), output_content)


def on_post_build(config: Any) -> None:
    """Write the files that the pages refer to."""
    for name, text in _inlined.items():
        (Path(config["site_dir"]) / "assets" / name).write_text(text)


def _external(inline: re.Match[str], url: str) -> str:
    kind, text = inline[1], inline[2]
    name = f"inline-{hashlib.sha256(text.encode()).hexdigest()[:12]}.{'js' if kind == 'script' else 'css'}"
    _inlined[name] = text
    address = f"/docs/assets/{name}" if url.startswith("/") else f"{'../' * url.count('/')}assets/{name}"
    return f'<script src="{address}"></script>' if kind == "script" else f'<link rel="stylesheet" href="{address}">'
