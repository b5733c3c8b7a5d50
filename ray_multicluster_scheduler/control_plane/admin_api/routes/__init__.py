"""What can be asked of a service, one module for each kind of thing."""
