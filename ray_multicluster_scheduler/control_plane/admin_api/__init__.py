"""The service: one control plane that many programs share, over HTTP."""
