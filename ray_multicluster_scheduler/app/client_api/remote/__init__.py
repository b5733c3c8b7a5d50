"""The same verbs against a service: what was submitted outlives the program."""
