"""A page as a test reads it: its tags, whether each is closed, and its text."""

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "input", "link", "path", "line", "rect"}


class Page(HTMLParser):
    """Tags with attributes, visible text, and whether every tag is closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.words, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in {"script", "style"}:
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def spaces(text):
    """On one line, with plain blanks."""
    return re.sub(r"\s+", " ", text.replace("\u00a0", " "))
