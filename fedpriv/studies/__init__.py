"""Runs of one's own together: read, listed, put into tables, compared, shown on a page that lives."""
