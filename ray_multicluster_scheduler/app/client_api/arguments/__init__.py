"""What is given to tasks and actors: pickled, waited for, shipped once."""
