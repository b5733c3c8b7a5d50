"""What happens, told over HTTP as it happens."""
