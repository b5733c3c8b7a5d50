"""The verbs inside a cluster: plain Ray calls by whoever runs there. Standard library and Ray only."""
