"""Figures of several finished runs (`fedpriv figure`), a file a kind; each also as a table of its numbers."""
