"""A hook of mkdocs: adds the pages that lie beside the SIP servers' configurations to the site, and the links to and from them."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "opensips-config"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page in sorted((ROOT / FOLDER).glob("*.md")):
        files.append(File.generated(config, f"{FOLDER}/{page.name}", abs_src_path=str(page)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """On the site the folder is one of the folders of docs/, not their neighbour."""
    if page.file.src_uri.startswith(f"{FOLDER}/"):
        return markdown.replace("](../docs/", "](../")
    return re.sub(rf"\]\(\.\./((?:\.\./)*{FOLDER}/)", r"](\1", markdown)
