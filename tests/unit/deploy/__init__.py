"""What is in deploy/."""
