"""`fedpriv audit`: attacks on a run, to set what is measured beside what its ledger promises."""
