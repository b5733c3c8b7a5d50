"""What a submission gives back, and how one waits for it."""
