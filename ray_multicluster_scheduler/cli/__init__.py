"""What an operator types. A command's module imports only Typer at the top: `rmcs --help` must answer at once."""
