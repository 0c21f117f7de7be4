"""What is logged inside clients and rounds, and progress bars."""
