"""Which data sets are neighbours: what a guarantee is about, in the words of every report."""

SAMPLE = "add or remove one sample of one client"
CLIENT = "add or remove one client with all its samples"
SCHEDULED = "add or remove what one client sends in all rounds, its place in the schedule kept"
LOCAL = "replace all data of one client by any other, as seen by the server (local differential privacy)"
SHUFFLED = (
    "replace all data of one client by any other, as seen by a server that gets the shuffled messages only"
)
