"""What happens in a control plane, told to whoever wants to hear it."""
