"""Events, accountants, calibration and the ledger: what a run spends, claims and can prove."""
