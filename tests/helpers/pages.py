"""A page as a reader of HTML sees it."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Every tag closed, and what the page would load from elsewhere."""

    EMPTY = ("meta", "br", "img", "link", "input", "hr")

    def __init__(self):
        super().__init__()
        self.open, self.loads, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        if tag not in self.EMPTY:
            self.open.append(tag)
        self.loads += [v for k, v in attributes if k in ("src", "href") and not v.startswith(("#", "data:"))]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
