"""The configuration, installed as fedpriv.conf."""
