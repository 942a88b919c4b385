"""The documentation: pages in Markdown, a page per command made from the code, and the site."""
