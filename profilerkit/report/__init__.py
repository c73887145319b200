"""Report to sections of blocks, and those to html, markdown, terminal; and to json."""
