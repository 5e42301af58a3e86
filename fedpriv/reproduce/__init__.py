"""One command per published table or figure, and an honest comparison with what was printed."""
